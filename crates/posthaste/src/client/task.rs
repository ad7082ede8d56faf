//! What a command wants done, and the doing of it: ask, show, and look again where somebody watches.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::http::{Answer, Request, Server};
use super::operations::Operation;
use super::table::{Choice, Column, Widths, record, rows, titles};
use super::text::{Reader, escaped, escaped_json};

const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// One command, understood.
pub(super) struct Task {
    pub(super) request: Request,
    pub(super) shown: Shown,
    /// Asked before it is done, unless somebody has said yes.
    pub(super) question: Option<String>,
    pub(super) is_watching: bool,
    /// Whether there is nothing left to watch.
    pub(super) ends_when: Option<fn(&Value) -> bool>,
    /// What it has made is watched by this.
    pub(super) followed_by: Option<&'static Operation>,
    /// Why the command has failed although the call was answered.
    pub(super) complaint: Option<fn(&Value) -> Option<Failure>>,
    /// What a person should look at although it went well.
    pub(super) warnings: Option<fn(&Value) -> Vec<String>>,
    /// The columns of a list that were asked for by name.
    pub(super) columns: Vec<String>,
    /// One line that says how far it has come, for whoever watches without a terminal.
    pub(super) progress: Option<fn(&Value) -> String>,
}

/// How the answer is shown to people.
#[derive(Clone, Copy)]
pub(super) enum Shown {
    /// A page of a list, or all of it.
    Table {
        columns: &'static [Column],
        is_all: bool,
    },
    Record,
    /// Nothing came back: in these words.
    Done(&'static str),
    /// A record with something in it that is never shown again.
    Once(&'static str),
}

/// Every command is one of these.
pub(super) trait ApiCommand {
    fn task(self) -> Result<Task, Failure>;
}

impl Task {
    pub(super) fn new(request: Request, shown: Shown) -> Task {
        Task {
            request,
            shown,
            question: None,
            is_watching: false,
            ends_when: None,
            followed_by: None,
            complaint: None,
            warnings: None,
            columns: vec![],
            progress: None,
        }
    }

    pub(super) fn record(request: Request) -> Task {
        Task::new(request, Shown::Record)
    }

    pub(super) fn list(request: Request, page: &Page, columns: &'static [Column]) -> Task {
        let request = request.with("limit", page.limit).with("cursor", page.cursor.as_deref());
        Task {
            is_watching: page.watch,
            columns: page.columns.clone(),
            ..Task::new(request, Shown::Table { columns, is_all: page.all })
        }
    }

    pub(super) fn watching(self, watch: Watch) -> Task {
        Task { is_watching: watch.watch, ..self }
    }
}

/// For lists.
#[derive(Args)]
pub(crate) struct Page {
    /// How many at most, from 1 to 250; 50 unless said
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Where the page begins, as a page before it has said
    #[arg(long)]
    cursor: Option<String>,
    /// Only these columns, by commas and in this order: id,status,why. On a terminal, as many as fit unless said
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    columns: Vec<String>,
    /// Follow the pages to the end
    #[arg(long, conflicts_with_all = ["cursor", "watch"])]
    all: bool,
    /// Look again each second, and show what has changed
    #[arg(long)]
    watch: bool,
}

/// For single things.
#[derive(Args, Clone, Copy)]
pub(crate) struct Watch {
    /// Look again each second, and show what has changed
    #[arg(long)]
    pub(super) watch: bool,
}

/// What a list answers.
#[derive(Deserialize)]
struct Listed {
    data: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

/// Does it.
pub(super) async fn run(server: &mut Server, task: &Task, is_json: bool) -> Result<(), Failure> {
    let mut output = Output::new(is_json);
    if let (Shown::Table { columns, .. }, false) = (task.shown, task.columns.is_empty()) {
        output.choice = Some(Choice::named(columns, &task.columns).map_err(Failure::usage)?);
    }
    if task.is_watching && task.followed_by.is_none() {
        return watch(server, &task.request, task, &mut output).await;
    }
    if let Shown::Table { columns, is_all } = task.shown {
        return list(server, &task.request, columns, is_all, &mut output).await;
    }
    let answer = server.ask(&task.request).await?;
    if let Shown::Done(words) = task.shown {
        return if is_json { Ok(()) } else { write_line(words) };
    }
    let is_followed = task.is_watching && task.progress.is_some() && !output.is_redrawn() && !is_json;
    if !is_followed {
        output.record(&answer)?;
    }
    if let Some(failure) = task.complaint.and_then(|complaint| complaint(&understood(&answer).ok()?)) {
        return Err(failure);
    }
    if let (Some(warnings), false) = (task.warnings, is_json) {
        for warning in understood::<Value>(&answer).map(|answer| warnings(&answer)).unwrap_or_default() {
            say_aside(&format!("warning: {}", escaped(&warning)))?;
        }
    }
    if let (Shown::Once(words), false) = (task.shown, is_json) {
        say_aside(words)?;
    }
    match task.followed_by {
        Some(operation) if task.is_watching => {
            let made: Value = understood(&answer)?;
            // A dry run makes nothing that could be followed.
            let Some(id) = made["id"].as_str() else { return Ok(()) };
            watch(server, &Request::to(operation).named(id), task, &mut output).await
        }
        Some(_) | None => Ok(()),
    }
}

async fn list(
    server: &mut Server,
    request: &Request,
    columns: &'static [Column],
    is_all: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut request = request.clone();
    let mut widths = Widths::default();
    let mut shown = 0;
    loop {
        let answer = server.ask(&request).await?;
        let page: Listed = understood(&answer)?;
        if output.is_json && !is_all {
            output.json(&answer)?;
        } else if output.is_json {
            // One list of all pages, each element to the byte as it came.
            for item in &page.data {
                output.json_piece(if shown == 0 { "{\"data\":[" } else { "," })?;
                output.json_piece(item.get())?;
                shown += 1;
            }
        } else {
            let cells = output.cells(columns, &page.data)?;
            let lines = widths.align(&output.chosen(&[vec![titles(columns)], cells].concat()));
            let skipped = usize::from(shown > 0 || page.data.is_empty());
            for line in &lines[skipped..] {
                write_line(line)?;
            }
            shown += page.data.len();
        }
        match page.next_cursor {
            Some(cursor) if is_all => request = request.with("cursor", Some(cursor)),
            Some(cursor) => {
                return say_aside(&format!("there is more: --all, or --cursor {}", escaped(&cursor)));
            }
            None if output.is_json && is_all => {
                let end = if shown == 0 { "{\"data\":[],\"next_cursor\":null}\n" } else { "],\"next_cursor\":null}\n" };
                return output.json_piece(end);
            }
            None if shown == 0 && !output.is_json => return say_aside("there is none"),
            None => return Ok(()),
        }
    }
}

/// On a terminal the picture is drawn again; elsewhere what has changed is added.
async fn watch(server: &mut Server, request: &Request, task: &Task, output: &mut Output) -> Result<(), Failure> {
    let mut told = WatchState::default();
    let mut has_failed = false;
    let mut is_first = true;
    loop {
        match server.ask(request).await {
            Ok(answer) => {
                has_failed = false;
                output.reader.now = Timestamp::now();
                match task.shown {
                    Shown::Table { columns, .. } => told.list(&answer, columns, output)?,
                    Shown::Record | Shown::Done(_) | Shown::Once(_) => told.record(&answer, task.progress, output)?,
                }
                let is_over = task.ends_when.is_some_and(|is_over| understood(&answer).is_ok_and(|value: Value| is_over(&value)));
                if is_over {
                    return Ok(());
                }
            }
            // A server that restarts is worth waiting for, but not one that was never there.
            Err(failure) if failure.may_pass() && !is_first => {
                if !has_failed && let Some(words) = failure.words() {
                    say_aside(&words)?;
                }
                has_failed = true;
            }
            Err(failure) => return Err(failure),
        }
        is_first = false;
        tokio::time::sleep(LOOKS_EVERY).await;
    }
}

/// What was written when it was last looked.
#[derive(Default)]
struct WatchState {
    rows: HashMap<String, String>,
    lines: Vec<String>,
    widths: Widths,
    has_titles: bool,
}

impl WatchState {
    fn list(&mut self, answer: &Answer, columns: &'static [Column], output: &mut Output) -> Result<(), Failure> {
        let page: Listed = understood(answer)?;
        let cells = output.cells(columns, &page.data)?;
        if output.is_redrawn() {
            return draw(&self.widths.align(&output.chosen(&[vec![titles(columns)], cells].concat())));
        }
        if !self.has_titles && !output.is_json {
            let first = output.chosen(&[vec![titles(columns)], cells.clone()].concat());
            write_line(&self.widths.align(&first)[0])?;
            self.has_titles = true;
        }
        let mut seen = HashMap::new();
        // The oldest first, as things happened.
        for (cells, item) in cells.iter().zip(&page.data).rev() {
            let name = cells.first().cloned().unwrap_or_default();
            let line = if output.is_json {
                item.get().to_owned()
            } else {
                self.widths.align(&output.chosen(std::slice::from_ref(cells))).concat()
            };
            let content = if output.is_json { line.clone() } else { cells.join("\u{1f}") };
            if self.rows.get(&name) != Some(&content) {
                if output.is_json {
                    output.json_piece(&format!("{line}\n"))?;
                } else {
                    write_line(&line)?;
                }
            }
            seen.insert(name, content);
        }
        self.rows = seen;
        Ok(())
    }

    fn record(&mut self, answer: &Answer, progress: Option<fn(&Value) -> String>, output: &mut Output) -> Result<(), Failure> {
        let lines = match progress {
            _ if output.is_json => vec![text_of(answer)?.to_owned()],
            Some(progress) if !output.is_redrawn() => vec![escaped(&progress(&understood(answer)?))],
            Some(_) | None => output.lines_of(answer)?,
        };
        if output.is_redrawn() {
            return draw(&lines);
        }
        for line in lines.iter().filter(|line| !self.lines.contains(line)) {
            if output.is_json {
                output.json_piece(&format!("{line}\n"))?;
            } else {
                write_line(line)?;
            }
        }
        self.lines = lines;
        Ok(())
    }
}

/// Where it goes.
struct Output {
    is_json: bool,
    reader: Reader,
    /// What was asked for, or what fits, from the first page on.
    choice: Option<Choice>,
}

impl Output {
    fn new(is_json: bool) -> Output {
        let is_terminal = std::io::stdout().is_terminal();
        Output { is_json, reader: Reader { is_terminal, now: Timestamp::now() }, choice: None }
    }

    /// Those cells that are shown. On a terminal, columns that do not fit are left out; in a pipe none is.
    fn chosen(&mut self, lines: &[Vec<String>]) -> Vec<Vec<String>> {
        let width = self.reader.is_terminal.then(terminal_width);
        self.choice.get_or_insert_with(|| Choice::fitting(lines, width)).of(lines)
    }

    fn is_redrawn(&self) -> bool {
        self.reader.is_terminal && !self.is_json
    }

    fn record(&mut self, answer: &Answer) -> Result<(), Failure> {
        if self.is_json {
            return self.json(answer);
        }
        for line in self.lines_of(answer)? {
            write_line(&line)?;
        }
        Ok(())
    }

    fn lines_of(&self, answer: &Answer) -> Result<Vec<String>, Failure> {
        let raw: Box<RawValue> = understood(answer)?;
        let mut lines = record(&raw, &self.reader);
        if let Some(etag) = &answer.etag {
            lines.push(String::new());
            lines.push(format!("version {} (for --if-match)", escaped(etag.trim_matches('"'))));
        }
        Ok(lines)
    }

    /// To the byte as it came, and a line's end.
    fn json(&mut self, answer: &Answer) -> Result<(), Failure> {
        let text = text_of(answer)?.to_owned();
        self.json_piece(&text)?;
        self.json_piece("\n")
    }

    fn json_piece(&mut self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        if self.reader.is_terminal {
            out.write_all(escaped_json(text).as_bytes())?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        Ok(out.flush()?)
    }

    fn cells(&self, columns: &'static [Column], items: &[Box<RawValue>]) -> Result<Vec<Vec<String>>, Failure> {
        let values: Result<Vec<Value>, _> = items.iter().map(|item| serde_json::from_str(item.get())).collect();
        Ok(rows(columns, &values.map_err(strange)?, &self.reader))
    }
}

/// 80 where the terminal does not say.
fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0))
}

fn write_line(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// What is said beside the output.
fn say_aside(words: &str) -> Result<(), Failure> {
    Ok(writeln!(std::io::stderr(), "{words}")?)
}

/// Over whatever the terminal shows.
fn draw(lines: &[String]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[2J\x1b[H{}\n\nevery second, until Ctrl-C\n", lines.join("\n"))?;
    Ok(out.flush()?)
}

fn text_of(answer: &Answer) -> Result<&str, Failure> {
    std::str::from_utf8(&answer.body).map_err(strange)
}

fn understood<'a, T: Deserialize<'a>>(answer: &'a Answer) -> Result<T, Failure> {
    serde_json::from_slice(&answer.body).map_err(strange)
}

fn strange(_: impl std::error::Error) -> Failure {
    Failure::unexpected("the answer is not what Posthaste answers; is it the right URL, and a server of this version?")
}
