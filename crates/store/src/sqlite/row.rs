//! Columns of SQLite's rows, by name or, where many are read, by place. Whatever cannot be read back is `Corrupt`, never guessed.

use posthaste_core::time::Timestamp;
use rusqlite::Row;
use rusqlite::types::{FromSql, ValueRef};

use crate::Error;
use crate::columns::corrupt;

/// Which column. To find a name, SQLite is asked for the names of all columns before it; a place is found at once.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    place: Option<usize>,
}

impl From<&'static str> for Column {
    fn from(name: &'static str) -> Column {
        Column { name, place: None }
    }
}

/// The place in what is selected, and the name for whoever has to hear that it cannot be read.
impl From<(usize, &'static str)> for Column {
    fn from((place, name): (usize, &'static str)) -> Column {
        Column { name, place: Some(place) }
    }
}

fn value<'a>(row: &'a Row<'_>, column: Column) -> Result<ValueRef<'a>, Error> {
    match column.place {
        Some(place) => row.get_ref(place),
        None => row.get_ref(column.name),
    }
    .map_err(corrupt(column.name))
}

pub(super) fn column<T: FromSql>(row: &Row<'_>, column: impl Into<Column>) -> Result<T, Error> {
    let column = column.into();
    T::column_result(value(row, column)?).map_err(corrupt(column.name))
}

/// A text, where it lies.
pub(super) fn text<'a>(row: &'a Row<'_>, column: impl Into<Column>) -> Result<&'a str, Error> {
    let column = column.into();
    value(row, column)?.as_str().map_err(corrupt(column.name))
}

pub(super) fn optional_text<'a>(row: &'a Row<'_>, column: impl Into<Column>) -> Result<Option<&'a str>, Error> {
    let column = column.into();
    value(row, column)?.as_str_or_null().map_err(corrupt(column.name))
}

/// A column that the core has a parser for.
pub(super) fn parsed<T, E>(row: &Row<'_>, column: impl Into<Column>, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Error> {
    let column = column.into();
    parse(text(row, column)?).map_err(corrupt(column.name))
}

pub(super) fn optional<T, E>(
    row: &Row<'_>,
    column: impl Into<Column>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Error> {
    let column = column.into();
    optional_text(row, column)?.map(parse).transpose().map_err(corrupt(column.name))
}

pub(super) fn timestamp(row: &Row<'_>, name: impl Into<Column>) -> Result<Timestamp, Error> {
    column(row, name).map(Timestamp::from_millis)
}

pub(super) fn optional_timestamp(row: &Row<'_>, name: impl Into<Column>) -> Result<Option<Timestamp>, Error> {
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

/// How SQLite would go about it, step by step.
#[cfg(test)]
pub(super) fn plan(connection: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
    // What its parameters are makes no difference, as long as there are as many.
    let unbound = rusqlite::params_from_iter(vec![None::<i64>; explained.parameter_count()]);
    let words = explained.query_map(unbound, |row| row.get("detail")).expect("a plan");
    words.collect::<Result<_, _>>().expect("words")
}
