//! What people see: tables for lists, one field a line for single things.
//!
//! Columns are aligned and ids are whole. Everything comes from a server, and through it from strangers, so that nothing is
//! written that was not made harmless first.

use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{Members, string};
use super::text::{Reader, escaped, shortened};

/// Longer texts are cut in tables; `show` has them whole.
const CELL_CHARACTERS_MAX: usize = 60;

/// One column: its title, and where its content is.
#[derive(Debug)]
pub(super) struct Column(pub(super) &'static str, pub(super) Cell);

#[derive(Debug)]
pub(super) enum Cell {
    /// By its JSON pointer.
    Text(&'static str),
    /// Never cut.
    Id(&'static str),
    Time(&'static str),
    /// From several fields.
    Made(fn(&Value, &Reader) -> String),
}

impl Column {
    fn cell(&self, row: &Value, reader: &Reader) -> String {
        match self.1 {
            Cell::Text(pointer) => shortened(&plain(row.pointer(pointer)), CELL_CHARACTERS_MAX),
            Cell::Id(pointer) => plain(row.pointer(pointer)),
            Cell::Time(pointer) => {
                row.pointer(pointer).and_then(Value::as_str).map_or_else(|| "-".to_owned(), |time| reader.time(time))
            }
            Cell::Made(make) => make(row, reader),
        }
    }
}

/// The cells of each row. The first names it.
pub(super) fn rows(columns: &[Column], items: &[Value], reader: &Reader) -> Vec<Vec<String>> {
    items.iter().map(|item| columns.iter().map(|column| column.cell(item, reader)).collect()).collect()
}

pub(super) fn titles(columns: &[Column]) -> Vec<String> {
    columns.iter().map(|column| column.0.to_owned()).collect()
}

/// Which columns are shown, by their places.
#[derive(Clone, Debug)]
pub(super) struct Choice(Vec<usize>);

impl Choice {
    /// By their titles, as `--columns id,status,why` has them: in small letters, up to the first character that is no letter.
    pub(super) fn named(columns: &[Column], names: &[String]) -> Result<Choice, String> {
        let name_of = |column: &Column| {
            let title = column.0.to_lowercase();
            title.split(|character: char| !character.is_ascii_alphabetic()).next().unwrap_or_default().to_owned()
        };
        let known: Vec<String> = columns.iter().map(name_of).collect();
        let place = |name: &String| {
            let place = known.iter().position(|known| *known == name.trim().to_lowercase());
            place.ok_or_else(|| format!("there is no column `{}`; there are {}", escaped(name), known.join(", ")))
        };
        names.iter().map(place).collect::<Result<_, _>>().map(Choice)
    }

    /// As many of the first ones as fit into a width, but two at least.
    pub(super) fn fitting(lines: &[Vec<String>], width: Option<usize>) -> Choice {
        let count = lines.first().map_or(0, Vec::len);
        let Some(width) = width else { return Choice((0..count).collect()) };
        let wide = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let mut sum = 0;
        let fits = (0..count).take_while(|at| {
            sum += wide(*at) + if *at == 0 { 0 } else { 2 };
            sum <= width || *at < 2
        });
        Choice(fits.collect())
    }

    pub(super) fn of(&self, lines: &[Vec<String>]) -> Vec<Vec<String>> {
        let pick = |line: &Vec<String>| self.0.iter().filter_map(|at| line.get(*at).cloned()).collect();
        lines.iter().map(pick).collect()
    }
}

/// Lines with aligned cells.
pub(super) fn aligned(lines: &[Vec<String>]) -> Vec<String> {
    Widths::default().align(lines)
}

/// How wide each column is. It only grows, so that pages of one list stand below each other.
#[derive(Default, Debug)]
pub(super) struct Widths(Vec<usize>);

impl Widths {
    pub(super) fn align(&mut self, lines: &[Vec<String>]) -> Vec<String> {
        for line in lines {
            for (at, cell) in line.iter().enumerate() {
                let width = cell.chars().count();
                match self.0.get_mut(at) {
                    Some(known) => *known = width.max(*known),
                    None => self.0.push(width),
                }
            }
        }
        let written = |line: &Vec<String>| {
            let cells = line.iter().zip(&self.0).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        lines.iter().map(written).collect()
    }
}

/// A value in a table: nothing is a dash, lists are their elements.
pub(super) fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => escaped(text),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(Value::Array(items)) => items.iter().map(|item| plain(Some(item))).collect::<Vec<_>>().join(", "),
        Some(value @ (Value::Bool(_) | Value::Number(_) | Value::Object(_))) => escaped(&value.to_string()),
    }
}

/// Members that are somebody's JSON, and shown as they are.
const SHOWN_AS_JSON: [&str; 6] = ["data", "filter", "before", "after", "schema", "example"];

/// One thing, a field a line, in the order in which the server told them.
pub(super) fn record(object: &RawValue, reader: &Reader) -> Vec<String> {
    let mut fields = Vec::new();
    let mut blocks = Vec::new();
    gather("", object, reader, &mut fields, &mut blocks);
    let mut lines = aligned(&fields);
    for (title, block) in blocks {
        lines.push(String::new());
        lines.push(title);
        lines.extend(block.into_iter().map(|line| format!("  {line}")));
    }
    lines
}

fn gather(
    prefix: &str,
    object: &RawValue,
    reader: &Reader,
    fields: &mut Vec<Vec<String>>,
    blocks: &mut Vec<(String, Vec<String>)>,
) {
    let Ok(Members(members)) = serde_json::from_str::<Members>(object.get()) else {
        // Not an object: shown as it is.
        fields.push(vec![escaped(object.get())]);
        return;
    };
    for (name, value) in members {
        let title = if prefix.is_empty() { escaped(&name) } else { format!("{prefix}.{}", escaped(&name)) };
        let text = value.get();
        if SHOWN_AS_JSON.contains(&name.as_str()) && text != "null" {
            blocks.push((title, text.lines().map(escaped).collect()));
        } else if text.starts_with('{') && text != "{}" {
            gather(&title, &value, reader, fields, blocks);
        } else if text.starts_with("[{") {
            blocks.push((title, nested(&value, reader)));
        } else {
            fields.push(vec![title, scalar(&name, &value, reader)]);
        }
    }
}

/// A list of objects inside of one: a table with every member that any of them has.
fn nested(list: &RawValue, reader: &Reader) -> Vec<String> {
    let Ok(items) = serde_json::from_str::<Vec<Members>>(list.get()) else { return vec![escaped(list.get())] };
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in items.iter().flat_map(|item| &item.0) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut lines = vec![names.iter().map(|name| escaped(name).to_uppercase()).collect::<Vec<_>>()];
    for item in &items {
        let cell = |name: &&str| {
            item.get(name).map_or_else(|| "-".to_owned(), |value| shortened(&scalar(name, value, reader), CELL_CHARACTERS_MAX))
        };
        lines.push(names.iter().map(cell).collect());
    }
    aligned(&lines)
}

fn scalar(name: &str, value: &RawValue, reader: &Reader) -> String {
    match string(value) {
        Some(text) if is_time(name) && text.parse::<jiff::Timestamp>().is_ok() => {
            let relative = reader.time(&text);
            if relative == text { text } else { format!("{text} ({relative})") }
        }
        Some(text) if text.is_empty() => "-".to_owned(),
        Some(text) => escaped(&text),
        None => match serde_json::from_str::<Vec<String>>(value.get()) {
            Ok(texts) if texts.is_empty() => "-".to_owned(),
            Ok(texts) => texts.iter().map(|text| escaped(text)).collect::<Vec<_>>().join(", "),
            Err(_) if matches!(value.get(), "null" | "{}") => "-".to_owned(),
            Err(_) => escaped(value.get()),
        },
    }
}

fn is_time(name: &str) -> bool {
    name.ends_with("_at") || name.ends_with("until") || matches!(name, "at" | "from" | "to" | "timestamp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PROGRAM: Reader = Reader { is_terminal: false, now: jiff::Timestamp::UNIX_EPOCH };

    #[test]
    fn columns_are_chosen_by_name_or_by_what_fits() {
        let columns =
            [Column("ID", Cell::Id("/id")), Column("WHY, AND UNTIL WHEN", Cell::Id("/why")), Column("LAST", Cell::Id("/last"))];
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let lines = [line(["ID", "WHY", "LAST"]), line(["0123456789", "none", "200"])];
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let chosen = Choice::named(&columns, &names(&["last", "WHY"])).unwrap();
        assert_eq!(chosen.of(&lines)[1], ["200", "none"]);
        assert_eq!(Choice::named(&columns, &names(&["y"])).unwrap_err(), "there is no column `y`; there are id, why, last");
        let count = |width| Choice::fitting(&lines, width).of(&lines)[0].len();
        assert_eq!([count(None), count(Some(22)), count(Some(21)), count(Some(5))], [3, 3, 2, 2]);
    }

    #[test]
    fn columns_are_aligned_ids_are_whole_and_hostile_text_is_harmless() {
        let columns = [Column("ID", Cell::Id("/id")), Column("ABOUT", Cell::Text("/about")), Column("N", Cell::Text("/n"))];
        let long = "x".repeat(100);
        let items = [json!({"id": long, "about": "\x1b[2Jhi", "n": 1}), json!({"id": "b", "about": long, "n": null})];
        let mut lines = vec![titles(&columns)];
        lines.extend(rows(&columns, &items, &PROGRAM));
        let shown = aligned(&lines);
        assert!(shown[1].contains(&long) && shown[1].contains(r"\u{1b}[2Jhi"), "{shown:?}");
        assert!(shown[2].contains('…') && shown[2].ends_with('-'));
        let places: Vec<_> = shown.iter().map(|line| line.chars().count()).collect();
        assert_eq!(places, [165, 165, 165].map(|n: usize| n), "{shown:#?}");
    }

    #[test]
    fn a_record_keeps_the_servers_order_and_somebodys_json() {
        let raw = RawValue::from_string(
            "{\"z\":1,\"a\":{\"b\":\"2026-11-16T08:00:00.000Z\",\"c\":[]},\"data\":{\"n\":1e400,\n\"x\":\"\u{9b}\"},\"list\":[{\"k\":1},{\"l\":\"m\"}]}".to_owned(),
        )
        .unwrap();
        let lines = record(&raw, &PROGRAM);
        expect_test::expect![[r#"
            z    1
            a.b  2026-11-16T08:00:00.000Z
            a.c  -

            data
              {"n":1e400,
              "x":"\u{9b}"}

            list
              K  L
              1  -
              -  m"#]]
        .assert_eq(&lines.join("\n"));
    }
}
