//! What may be published, and what becomes of it: the same whichever way it comes in, over the API or from an outbox.
//!
//! Everything that can be judged without the database is judged here, once. Whether a tenant has to be there is asked of the
//! store, and only where that matters.

use std::fmt;
use std::sync::Arc;

use posthaste_core::event::{Data, Event, EventType, Timing, TimingError};
use posthaste_core::id::{EventId, TenantId, Unique};
use posthaste_core::text::{IdempotencyKey, Label, Labels, OrderingKey, TextError, Version};
use posthaste_core::time::Timestamp;
use posthaste_core::trace::TraceContext;
use sha2::{Digest, Sha256};

use crate::catalogue::Catalogue;
use crate::{Error, NewEvent, Store};

/// Types below it are Posthaste's own, for notifications.
pub const RESERVED_TYPES: &str = "posthaste.";

/// Whether a type is one that only Posthaste publishes.
pub fn is_reserved_type(name: &str) -> bool {
    name.starts_with(RESERVED_TYPES)
}

/// Notifications about all tenants go into this one, so that no one else may use it.
pub fn check_not_reserved(tenant: &TenantId, reserved: Option<&TenantId>) -> Result<(), InvalidEvent> {
    match reserved {
        Some(reserved) if reserved == tenant => {
            Err(InvalidEvent::new("tenant", "is reserved for notifications (notifications_tenant)"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Whose an event is that names nobody.
pub const DEFAULT_TENANT: &str = "default";

/// Not acceptable as it is, however often it is tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidEvent {
    /// Which part of it, as a publisher calls that.
    pub field: String,
    pub message: String,
}

impl InvalidEvent {
    pub fn new(field: impl Into<String>, message: impl fmt::Display) -> InvalidEvent {
        InvalidEvent { field: field.into(), message: message.to_string() }
    }
}

impl fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.field, self.message) }
    }
}

/// An event as somebody has written it down.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    pub event_type: &'a str,
    /// Any JSON. It stays as it is, to the byte.
    pub data: &'a str,
    pub tenant: TenantId,
    pub id: Option<&'a str>,
    pub version: Option<&'a str>,
    /// When it happened, if that was said.
    pub timestamp: Option<Timestamp>,
    pub idempotency_key: Option<IdempotencyKey>,
    pub ordering_key: Option<&'a str>,
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub labels: &'a [String],
    pub trace: Option<Box<TraceContext>>,
    /// When it was written down. Times are judged by it, and it happened then unless somebody says otherwise.
    pub written_at: Timestamp,
}

impl Draft<'_> {
    /// Checks all that can be checked without the store. `unique` is for whoever has chosen no id.
    pub fn accept(
        self,
        catalogue: &Catalogue,
        accepted_at: Timestamp,
        unique: impl FnOnce() -> Unique,
    ) -> Result<NewEvent, InvalidEvent> {
        let at = |field: &'static str| move |error: TextError| InvalidEvent::new(field, error);
        if is_reserved_type(self.event_type) {
            return Err(InvalidEvent::new("type", "types that begin with `posthaste.` are reserved for notifications"));
        }
        let timing = Timing::new(self.written_at, self.deliver_at, self.expires_at).map_err(|error| {
            let field = match error {
                TimingError::TooFarAhead => "deliver_at",
                TimingError::Expired | TimingError::ExpiresBeforeDelivery => "expires_at",
            };
            InvalidEvent::new(field, error)
        })?;
        let event = Event {
            id: match self.id {
                Some(id) => EventId::parse(id).map_err(at("id"))?,
                None => EventId::from_unique(unique()),
            },
            tenant: self.tenant,
            event_type: EventType::parse(self.event_type).map_err(at("type"))?,
            version: self.version.map(Version::parse).transpose().map_err(at("version"))?,
            timestamp: self.timestamp.unwrap_or(self.written_at),
            accepted_at,
            data: Data::parse(self.data).map_err(|error| InvalidEvent::new("data", error))?,
            labels: labels(self.labels)?,
            idempotency_key: self.idempotency_key,
            ordering_key: self.ordering_key.map(OrderingKey::parse).transpose().map_err(at("ordering_key"))?,
            timing,
            trace: self.trace,
        };
        catalogue.check(&event)?;
        let is_id_chosen = self.id.is_some();
        let is_remembered = is_id_chosen || event.idempotency_key.is_some();
        // Of what nobody can repeat, nothing is compared.
        let fingerprint = if is_remembered { fingerprint(&event, self.timestamp) } else { [0; 32] };
        Ok(NewEvent { event: Arc::new(event), is_id_chosen, fingerprint, resolved: None })
    }
}

fn labels(given: &[String]) -> Result<Labels, InvalidEvent> {
    let label =
        |(index, text): (usize, &String)| Label::parse(text).map_err(|error| InvalidEvent::new(format!("labels[{index}]"), error));
    let labels = given.iter().enumerate().map(label).collect::<Result<_, _>>()?;
    Labels::new(labels).map_err(|error| InvalidEvent::new("labels", error))
}

/// Of all that was given but the id and the key; a time that was not given is not ours to compare.
fn fingerprint(event: &Event, timestamp: Option<Timestamp>) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |name: &str, value: Option<&[u8]>| {
        hash.update(name.as_bytes());
        match value {
            None => hash.update([0]),
            Some(value) => {
                hash.update([1]);
                hash.update((value.len() as u64).to_be_bytes());
                hash.update(value);
            }
        }
    };
    let millis = |at: Option<Timestamp>| at.map(|at| at.as_millis().to_be_bytes());
    add("type", Some(event.event_type.as_str().as_bytes()));
    add("version", event.version.as_ref().map(|version| version.as_str().as_bytes()));
    add("timestamp", millis(timestamp).as_ref().map(<[u8; 8]>::as_slice));
    add("deliver_at", millis(event.timing.deliver_at()).as_ref().map(<[u8; 8]>::as_slice));
    add("expires_at", millis(event.timing.expires_at()).as_ref().map(<[u8; 8]>::as_slice));
    add("ordering_key", event.ordering_key.as_ref().map(|key| key.as_str().as_bytes()));
    for label in event.labels.iter() {
        add("label", Some(label.as_str().as_bytes()));
    }
    add("data", Some(event.data.as_str().as_bytes()));
    hash.finalize().into()
}

/// Where tenants have to be made first, this one has to be there.
pub async fn check_tenant(store: &dyn Store, is_strict: bool, tenant: &TenantId) -> Result<Result<(), InvalidEvent>, Error> {
    if is_strict && store.tenant(tenant.clone()).await?.is_none() {
        return Ok(Err(InvalidEvent::new("tenant", "there is no such tenant")));
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use posthaste_core::id::Sequence;
    use std::time::Duration;

    use super::*;

    const WRITTEN: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn draft<'a>(event_type: &'a str, data: &'a str) -> Draft<'a> {
        Draft {
            event_type,
            data,
            tenant: TenantId::parse("acme").expect("a name"),
            id: Some("evt_1"),
            version: None,
            timestamp: None,
            idempotency_key: None,
            ordering_key: None,
            deliver_at: None,
            expires_at: None,
            labels: &[],
            trace: None,
            written_at: WRITTEN,
        }
    }

    fn accept(draft: Draft<'_>, accepted_at: Timestamp) -> Result<NewEvent, String> {
        let unique = || Sequence::default().next(accepted_at, 0);
        draft.accept(&Catalogue::new(vec![]), accepted_at, unique).map_err(|refused| refused.to_string())
    }

    #[test]
    fn what_is_refused_names_its_field() {
        let hour = Duration::from_hours(1);
        for (draft, field) in [
            (draft("no type", "1"), "type"),
            (draft("a", "{"), "data"),
            (Draft { id: Some("a b"), ..draft("a", "1") }, "id"),
            (Draft { version: Some(""), ..draft("a", "1") }, "version"),
            (Draft { ordering_key: Some("a b"), ..draft("a", "1") }, "ordering_key"),
            (Draft { labels: &[String::new()], ..draft("a", "1") }, "labels[0]"),
            (Draft { expires_at: Some(WRITTEN - hour), ..draft("a", "1") }, "expires_at"),
            (Draft { deliver_at: Some(WRITTEN + 366 * 24 * hour), ..draft("a", "1") }, "deliver_at"),
        ] {
            let refused = accept(draft, WRITTEN).expect_err(field);
            assert!(refused.starts_with(&format!("{field}: ")), "{field}: {refused}");
        }
    }

    #[test]
    fn when_it_is_taken_changes_neither_what_it_is_nor_whether_it_is_accepted() {
        let hour = Duration::from_hours(1);
        let written = Draft { expires_at: Some(WRITTEN + hour), ..draft("a", " [1.50 ] ") };
        let at_once = accept(written.clone(), WRITTEN).expect("good");
        let late = accept(written, WRITTEN + 2 * hour).expect("it was good when it was written");
        assert_eq!(at_once.fingerprint, late.fingerprint);
        assert_eq!((late.event.timestamp, late.event.data.as_str()), (WRITTEN, " [1.50 ] "));
        let said = accept(Draft { timestamp: Some(WRITTEN), ..draft("a", " [1.50 ] ") }, WRITTEN).expect("good");
        assert_ne!(said.fingerprint, at_once.fingerprint, "a time that was said is compared");
    }
}
