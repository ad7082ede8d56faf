//! Columns of PostgreSQL's rows by name, and what may be bound. Whatever cannot be read back is `Corrupt`, never guessed.

use std::borrow::Cow;

use posthaste_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};

use crate::Error;
use crate::columns::corrupt;

/// What a statement is given, where it has to live as long as the statement is under way.
pub(super) type Parameters<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

/// Boxes each of them.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as Box<dyn tokio_postgres::types::ToSql + Sync + Send + '_>),*]
    };
}
pub(super) use parameters;

/// A column that says nothing in any row is left empty, which PostgreSQL fills up: each that it has to take apart costs time.
pub(super) fn if_any<T>(column: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = column.collect();
    if column.iter().any(Option::is_some) { column } else { Vec::new() }
}

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T, Error> {
    row.try_get(name).map_err(corrupt(name))
}

/// A text, where it lies.
pub(super) fn text<'a>(row: &'a Row, name: &'static str) -> Result<&'a str, Error> {
    column(row, name)
}

pub(super) fn optional_text<'a>(row: &'a Row, name: &'static str) -> Result<Option<&'a str>, Error> {
    column(row, name)
}

/// Bytes of which there is a fixed number.
pub(super) fn bytes<const N: usize>(row: &Row, name: &'static str) -> Result<[u8; N], Error> {
    column::<&[u8]>(row, name)?.try_into().map_err(corrupt(name))
}

pub(super) fn optional_bytes<const N: usize>(row: &Row, name: &'static str) -> Result<Option<[u8; N]>, Error> {
    column::<Option<&[u8]>>(row, name)?.map(TryInto::try_into).transpose().map_err(corrupt(name))
}

/// A column that the core has a parser for.
pub(super) fn parsed<T, E>(row: &Row, name: &'static str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Error> {
    parse(text(row, name)?).map_err(corrupt(name))
}

pub(super) fn optional<T, E>(row: &Row, name: &'static str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<Option<T>, Error> {
    optional_text(row, name)?.map(parse).transpose().map_err(corrupt(name))
}

pub(super) fn timestamp(row: &Row, name: &'static str) -> Result<Timestamp, Error> {
    column(row, name).map(Timestamp::from_millis)
}

pub(super) fn optional_timestamp(row: &Row, name: &'static str) -> Result<Option<Timestamp>, Error> {
    column::<Option<i64>>(row, name).map(|millis| millis.map(Timestamp::from_millis))
}

/// Counted from zero: PostgreSQL has no unsigned numbers.
pub(super) fn count(row: &Row, name: &'static str) -> Result<u32, Error> {
    u32::try_from(column::<i32>(row, name)?).map_err(corrupt(name))
}

/// PostgreSQL keeps no NUL in a text, and nothing that anybody sends may make a row unwritable.
pub(super) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

pub(super) fn optional_storable(text: Option<&String>) -> Option<Cow<'_, str>> {
    text.map(|text| storable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_replaced_and_everything_else_stays() {
        assert_eq!(storable("a\0b\0"), "a\u{fffd}b\u{fffd}");
        assert!(matches!(storable("Größe \u{1}"), Cow::Borrowed("Größe \u{1}")));
    }
}
