//! What was found, side by side for people and by name for programs.

use std::fmt::Write;

use serde_json::Value;

/// A name for people, one for programs, the value, and how many digits of it mean anything. What there is not is not a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure(pub(super) &'static str, pub(super) &'static str, pub(super) f64, pub(super) usize);

/// The figures of one run.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) figures: Vec<Figure>,
}

impl Column {
    pub(super) fn new(name: impl Into<String>, figures: Vec<Figure>) -> Column {
        Column { name: name.into(), figures }
    }

    pub(super) fn values(&self) -> Value {
        self.figures.iter().map(|Figure(_, name, value, _)| ((*name).to_owned(), number(*value))).collect()
    }
}

const LABEL_WIDTH: usize = 38;
const COLUMN_WIDTH_MIN: usize = 11;

/// Lines in the order of the first column that has them.
pub(super) fn table(columns: &[Column]) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for Figure(label, ..) in columns.iter().flat_map(|column| &column.figures) {
        if !labels.contains(label) {
            labels.push(label);
        }
    }
    let width = |column: &Column| column.name.chars().count().max(COLUMN_WIDTH_MIN);
    let mut page = " ".repeat(LABEL_WIDTH);
    for column in columns {
        let _ = write!(page, "  {:>width$}", column.name, width = width(column));
    }
    page.push('\n');
    for label in labels {
        let _ = write!(page, "{label:>LABEL_WIDTH$}");
        for column in columns {
            let found = column.figures.iter().find(|Figure(other, _, value, _)| *other == label && value.is_finite());
            let text = found.map_or_else(|| "-".to_owned(), |Figure(_, _, value, digits)| grouped(*value, *digits));
            let _ = write!(page, "  {text:>width$}", width = width(column));
        }
        page.push('\n');
    }
    page
}

/// With commas between thousands.
pub(super) fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, fraction)| (whole, Some(fraction)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut grouped = String::from(sign);
    for (place, digit) in whole.char_indices() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        let _ = write!(grouped, ".{fraction}");
    }
    grouped
}

/// Numbers that JSON can carry, without digits that mean nothing.
pub(super) fn number(value: f64) -> Value {
    let rounded = (value * 1e6).round() / 1e6;
    serde_json::Number::from_f64(rounded).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_side_by_side_and_show_what_they_do_not_have() {
        let one = Column::new("one", vec![Figure("rate", "rate", 12_345.6, 0), Figure("p50, ms", "p50_ms", 1.25, 2)]);
        let other =
            Column::new("a longer name", vec![Figure("p50, ms", "p50_ms", f64::NAN, 2), Figure("more", "more", -1000.5, 1)]);
        let page = table(&[one.clone(), other.clone()]);
        let lines: Vec<&str> = page.lines().map(str::trim_start).collect();
        let expected = [
            "one  a longer name",
            "rate       12,346              -",
            "p50, ms         1.25              -",
            "more            -       -1,000.5",
        ];
        assert_eq!(lines, expected);
        assert!(page.lines().all(|line| line.len() == LABEL_WIDTH + 2 + COLUMN_WIDTH_MIN + 2 + other.name.len()), "{page}");
        assert_eq!(one.values(), serde_json::json!({"rate": 12345.6, "p50_ms": 1.25}));
        assert_eq!(other.values()["p50_ms"], Value::Null);
    }
}
