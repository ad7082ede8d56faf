//! One thing that was looked at, and how it is.

use std::fmt::Display;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) grade: Grade,
    pub(super) words: String,
    /// What to do about it.
    pub(super) remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grade {
    Ok,
    /// It works, and somebody should look at it.
    Warning,
    /// A server would not start, would lose something, or does not do what it is there for.
    Wrong,
}

impl Grade {
    pub(super) fn name(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warning => "warning",
            Grade::Wrong => "wrong",
        }
    }
}

impl Finding {
    pub(super) fn ok(check: &'static str, words: impl Display) -> Finding {
        Finding { check, grade: Grade::Ok, words: words.to_string(), remedy: None }
    }

    pub(super) fn warning(check: &'static str, words: impl Display, remedy: impl Display) -> Finding {
        Finding { check, grade: Grade::Warning, words: words.to_string(), remedy: Some(remedy.to_string()) }
    }

    pub(super) fn wrong(check: &'static str, words: impl Display, remedy: impl Display) -> Finding {
        Finding { check, grade: Grade::Wrong, words: words.to_string(), remedy: Some(remedy.to_string()) }
    }

    /// Where the words themselves end with what to do.
    pub(super) fn wrong_as_told(check: &'static str, words: impl Display) -> Finding {
        Finding { check, grade: Grade::Wrong, words: words.to_string(), remedy: None }
    }
}
