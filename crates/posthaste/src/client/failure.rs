//! How a command ends when it does not end well. Scripts go by the code, people by the words.

use std::fmt::Display;
use std::io;

use super::text::escaped;

/// Why, sorted by what whoever called can do about it. The numbers are promised in the guide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nobody reads what we write, as after `| head`. That is their business.
    NobodyReads,
    Unexpected,
    Usage,
    Unreachable,
    Refused,
    NotFound,
    Credentials,
    Server,
    /// The receiver of a test did not accept it.
    Receiver,
}

/// For the help of every command that calls the server.
pub(crate) const EXIT_CODES: &str = "Exit codes:
  0  fine
  1  something unexpected; for verify: the signature is not valid; for status: something needs attention
  2  wrong usage
  3  the server cannot be reached
  4  the request was refused
  5  not found
  6  no valid key, or one that may not do this
  7  the server failed, or has too much to do
  8  the receiver of a test-send did not accept it";

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    message: String,
}

impl Failure {
    pub(super) fn new(kind: Kind, message: impl Display) -> Failure {
        Failure { kind, message: message.to_string() }
    }

    pub(super) fn usage(message: impl Display) -> Failure {
        Failure::new(Kind::Usage, message)
    }

    pub(super) fn unexpected(message: impl Display) -> Failure {
        Failure::new(Kind::Unexpected, message)
    }

    /// Whether the same may work in a moment.
    pub(super) fn may_pass(&self) -> bool {
        match self.kind {
            Kind::Unreachable | Kind::Server => true,
            Kind::NobodyReads
            | Kind::Unexpected
            | Kind::Usage
            | Kind::Refused
            | Kind::NotFound
            | Kind::Credentials
            | Kind::Receiver => false,
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::NobodyReads => 0,
            Kind::Unexpected => 1,
            Kind::Usage => 2,
            Kind::Unreachable => 3,
            Kind::Refused => 4,
            Kind::NotFound => 5,
            Kind::Credentials => 6,
            Kind::Server => 7,
            Kind::Receiver => 8,
        }
    }

    /// Without what follows on further lines, which is for whoever has called the command.
    pub(super) fn first_line(&self) -> String {
        escaped(self.message.lines().next().unwrap_or_default())
    }

    /// For stderr. What a server has said may be anything, and a terminal obeys control characters.
    pub(super) fn words(&self) -> Option<String> {
        if self.kind == Kind::NobodyReads {
            return None;
        }
        let lines: Vec<String> = self.message.lines().map(escaped).collect();
        Some(format!("posthaste: {}", lines.join("\n")))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { Kind::NobodyReads } else { Kind::Unexpected };
        Failure::new(kind, error)
    }
}
