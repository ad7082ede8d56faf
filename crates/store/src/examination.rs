//! A look at a database without changing anything in it: for `posthaste doctor`, also while a server uses it.

use std::time::Duration;

use crate::{Hold, Keyring, SealedValues};

/// Endpoints whose URLs are looked at: some ten megabytes.
pub(crate) const ENDPOINTS_MAX: usize = 100_000;

/// What was found. What would keep a server from starting is said in `troubles`, with what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// What it is, for people: `SQLite 3.50.4`, `PostgreSQL 15.14`.
    pub version: String,
    pub schema: Schema,
    pub master_key: MasterKeyFit,
    /// By which keys values are sealed, if there was a key to compare with.
    pub sealed: Option<SealedValues>,
    /// How far the clock of this machine is off from the database's, where that has one of its own.
    pub clock_skew: Option<Duration>,
    /// By how much the clock of this machine has jumped ahead, if a server has seen that and does not believe it.
    pub clock_jumped_by: Option<Duration>,
    /// A server was killed, and what it wrote last is in a log that is read by the next: what is told here may be older.
    pub has_unread_log: bool,
    /// The hold on all deliveries, if there is one.
    pub hold: Option<Hold>,
    /// Of the endpoints that take events, at most `ENDPOINTS_MAX` of them.
    pub endpoint_urls: Vec<String>,
    pub troubles: Vec<String>,
}

/// How the tables stand beside what this binary knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schema {
    /// There are no tables: the first start makes them.
    None,
    Current {
        version: u32,
    },
    /// The next start brings it up to date.
    Older {
        version: u32,
        known: u32,
    },
    /// Of a newer version, and usable all the same.
    NewerButUsable {
        version: u32,
        known: u32,
    },
    TooNew {
        version: u32,
        known: u32,
    },
}

impl Schema {
    pub(crate) fn of(stored: Option<(u32, u32)>, known: u32) -> Schema {
        match stored {
            None => Schema::None,
            Some((version, usable_from)) if usable_from > known => Schema::TooNew { version, known },
            Some((version, _)) if version > known => Schema::NewerButUsable { version, known },
            Some((version, _)) if version < known => Schema::Older { version, known },
            Some((version, _)) => Schema::Current { version },
        }
    }
}

/// Whether the secrets in a database can be opened with the keys that were given. Keys are told by what names them, never by
/// themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterKeyFit {
    /// No key has been used there yet.
    NothingSealed,
    Fits,
    /// One of the previous keys: the next start seals anew.
    IsPrevious,
    Differs {
        sealed_with: String,
        given: String,
    },
    /// There was no key to try.
    NoKey {
        sealed_with: String,
    },
}

impl MasterKeyFit {
    pub(crate) fn of(stored: Option<String>, keyring: Option<&Keyring>) -> MasterKeyFit {
        match (stored, keyring) {
            (None, _) => MasterKeyFit::NothingSealed,
            (Some(sealed_with), None) => MasterKeyFit::NoKey { sealed_with },
            (Some(sealed_with), Some(keyring)) => {
                let given = keyring.current_id().to_string();
                if sealed_with == given {
                    MasterKeyFit::Fits
                } else if keyring.knows(&sealed_with) {
                    MasterKeyFit::IsPrevious
                } else {
                    MasterKeyFit::Differs { sealed_with, given }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_told_by_who_can_use_it() {
        for (stored, schema) in [
            (None, Schema::None),
            (Some((15, 15)), Schema::Older { version: 15, known: 16 }),
            (Some((16, 16)), Schema::Current { version: 16 }),
            (Some((17, 16)), Schema::NewerButUsable { version: 17, known: 16 }),
            (Some((17, 17)), Schema::TooNew { version: 17, known: 16 }),
        ] {
            assert_eq!(Schema::of(stored, 16), schema);
        }
    }
}
