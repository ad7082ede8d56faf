//! Columns of SQLite's rows by name. Whatever cannot be read back is `Corrupt`, never guessed.

use posthaste_core::time::Timestamp;
use rusqlite::Row;
use rusqlite::types::FromSql;

use crate::Error;
use crate::columns::corrupt;

pub(super) fn column<T: FromSql>(row: &Row<'_>, name: &'static str) -> Result<T, Error> {
    row.get(name).map_err(corrupt(name))
}

/// A text, where it lies.
pub(super) fn text<'a>(row: &'a Row<'_>, name: &'static str) -> Result<&'a str, Error> {
    row.get_ref(name).map_err(corrupt(name))?.as_str().map_err(corrupt(name))
}

pub(super) fn optional_text<'a>(row: &'a Row<'_>, name: &'static str) -> Result<Option<&'a str>, Error> {
    row.get_ref(name).map_err(corrupt(name))?.as_str_or_null().map_err(corrupt(name))
}

/// A column that the core has a parser for.
pub(super) fn parsed<T, E>(row: &Row<'_>, name: &'static str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Error> {
    parse(text(row, name)?).map_err(corrupt(name))
}

pub(super) fn optional<T, E>(
    row: &Row<'_>,
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Error> {
    optional_text(row, name)?.map(parse).transpose().map_err(corrupt(name))
}

pub(super) fn timestamp(row: &Row<'_>, name: &'static str) -> Result<Timestamp, Error> {
    column(row, name).map(Timestamp::from_millis)
}

pub(super) fn optional_timestamp(row: &Row<'_>, name: &'static str) -> Result<Option<Timestamp>, Error> {
    column::<Option<i64>>(row, name).map(|millis| millis.map(Timestamp::from_millis))
}

/// All rows of a query, each read by `read`.
pub(super) fn all<T>(mut rows: rusqlite::Rows<'_>, mut read: impl FnMut(&Row<'_>) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// The one row of a query, if there is one.
pub(super) fn first<T>(mut rows: rusqlite::Rows<'_>, read: impl FnOnce(&Row<'_>) -> Result<T, Error>) -> Result<Option<T>, Error> {
    rows.next()?.map(read).transpose()
}
