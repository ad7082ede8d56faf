//! Logs: one line per event on stderr, for people or as JSON.
//!
//! Nobody waits for a log. Lines go through a bounded channel to a thread of their own; while stderr is blocked they are
//! dropped and counted, and delivery goes on. No control character reaches a log, whatever a receiver has answered.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_core::time::Timestamp;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::settings::LogFormat;

/// A second's worth at a high load; beyond that nobody reads along.
const LINES_WAITING_MAX: usize = 8192;
/// Longer than anything that we write. What is longer quotes somebody else.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// PostgreSQL tells of every table that is there already. Who wants to know asks by name.
const QUIET: &str = "tokio_postgres=warn";
/// How long an end waits for lines that are still under way.
const FLUSH_MAX: Duration = Duration::from_secs(1);

enum Message {
    Line(String),
    /// Answered when everything before it has been written.
    Flush(SyncSender<()>),
}

/// What lets lines through, and can be changed.
type Levels = reload::Handle<EnvFilter, Registry>;

/// The way to stderr.
#[derive(Clone)]
pub(crate) struct Logs {
    /// `None` before it has started, or where somebody else says what is logged.
    levels: Option<Levels>,
    sender: SyncSender<Message>,
    format: LogFormat,
    /// Not yet told of in a line.
    dropped: Arc<AtomicU64>,
    dropped_in_all: Arc<AtomicU64>,
}

impl Logs {
    /// Starts to log. `levels` was checked when it was read.
    pub(crate) fn start(levels: &str, format: LogFormat) -> Logs {
        let (mut logs, receiver) = Logs::new(format);
        let dropped = Arc::clone(&logs.dropped);
        std::thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || write_lines(&receiver, &dropped, &mut std::io::stderr(), format))
            .expect("a thread can be started at the beginning");
        let (filter, levels) = reload::Layer::new(filter(levels));
        let lines = Lines { logs: logs.clone(), format };
        // Somebody else's subscriber is possible only in a test.
        if Registry::default().with(lines.with_filter(filter)).try_init().is_ok() {
            logs.levels = Some(levels);
        }
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string);
            let message = panic.payload_as_str().unwrap_or_default();
            tracing::error!(place, message, "a bug: panicked");
        }));
        logs
    }

    fn new(format: LogFormat) -> (Logs, Receiver<Message>) {
        let (sender, receiver) = sync_channel(LINES_WAITING_MAX);
        (Logs { levels: None, sender, format, dropped: Arc::default(), dropped_in_all: Arc::default() }, receiver)
    }

    /// A line for the person who has started the process, whatever is logged.
    pub(crate) fn say(&self, line: &str) {
        self.send(spoken(self.format, "INFO", line));
    }

    /// What ends the process, whatever is logged.
    pub(crate) fn complain(&self, line: &str) {
        self.send(spoken(self.format, "ERROR", line));
    }

    fn send(&self, line: String) {
        if self.sender.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.dropped_in_all.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on. `levels` was checked when it was read.
    pub(crate) fn set_levels(&self, levels: &str) -> Result<(), String> {
        let handle = self.levels.as_ref().ok_or("somebody else decides what is logged")?;
        handle.reload(filter(levels)).map_err(|error| error.to_string())
    }

    /// Lines that were dropped since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped_in_all.load(Ordering::Relaxed)
    }

    /// Waits until what was logged has been written, but not for ever.
    pub(crate) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        if self.sender.try_send(Message::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(FLUSH_MAX);
        }
    }
}

/// A line of our own, outside of what is logged: for people as it is, and as JSON like any other.
pub(crate) fn spoken(format: LogFormat, level: &str, words: &str) -> String {
    match format {
        LogFormat::Human => format!("{}\n", without_control_characters(words)),
        LogFormat::Json => line(format, level, "posthaste", words.trim_start_matches("posthaste: "), &Map::new()),
    }
}

fn filter(levels: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(format!("{QUIET},{levels}"))
}

fn write_lines(receiver: &Receiver<Message>, dropped: &AtomicU64, sink: &mut impl std::io::Write, format: LogFormat) {
    for message in receiver {
        match message {
            // Nobody is left to be told that stderr is gone.
            Message::Line(line) => _ = sink.write_all(line.as_bytes()),
            Message::Flush(done) => {
                let _ = sink.flush();
                let _ = done.try_send(());
            }
        }
        let count = dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            let mut fields = Map::new();
            fields.insert("lines".to_owned(), count.into());
            let line = line(format, "WARN", "posthaste::log", "stderr was blocked; log lines were dropped", &fields);
            let _ = sink.write_all(line.as_bytes());
        }
    }
}

/// Makes a line of each event.
struct Lines {
    logs: Logs,
    format: LogFormat,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut found = Found::default();
        event.record(&mut found);
        let metadata = event.metadata();
        let target = found.target.as_deref().unwrap_or(metadata.target());
        self.logs.send(line(self.format, metadata.level().as_str(), target, &found.message, &found.fields));
    }
}

#[derive(Default)]
struct Found {
    message: String,
    /// Where it comes from, if that was the `log` crate, which has a way of its own to say so.
    target: Option<String>,
    fields: Map<String, Value>,
}

impl Found {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) if self.message.is_empty() => self.message = text,
            ("log.target", Value::String(text)) => self.target = Some(text),
            (name, _) if name.starts_with("log.") => {}
            (name, value) => _ = self.fields.insert(name.to_owned(), value),
        }
    }
}

impl Visit for Found {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u128(&mut self, field: &Field, value: u128) {
        self.put(field, u64::try_from(value).map_or_else(|_| value.to_string().into(), Value::from));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

fn line(format: LogFormat, level: &str, target: &str, message: &str, fields: &Map<String, Value>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = Timestamp::from_millis(i64::try_from(now).unwrap_or_default()).to_rfc3339();
    let mut line = match format {
        LogFormat::Human => {
            let mut line = format!("{now} {level:>5} {target}: {message}");
            for (name, value) in fields {
                let _ = match value {
                    Value::String(text) if text.contains([' ', '"', '=']) || text.is_empty() => write!(line, " {name}={text:?}"),
                    Value::String(text) => write!(line, " {name}={text}"),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                        write!(line, " {name}={value}")
                    }
                };
            }
            without_control_characters(&line)
        }
        LogFormat::Json => {
            let mut object = Map::new();
            for (name, text) in [("timestamp", now.as_str()), ("level", level), ("target", target), ("message", message)] {
                object.insert(name.to_owned(), shortened(&text.into()));
            }
            // Ours win: a field of the same name would make the line ambiguous.
            let fields = fields.iter().filter(|(name, _)| !["timestamp", "level", "target", "message"].contains(&name.as_str()));
            object.extend(fields.map(|(name, value)| (name.clone(), shortened(value))));
            without_hostile_characters(&Value::Object(object).to_string(), |clean, character| {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(clean, "\\u{unit:04x}");
                }
            })
        }
    };
    if line.len() > LINE_BYTES_MAX && format == LogFormat::Human {
        line.truncate(line.floor_char_boundary(LINE_BYTES_MAX));
        line.push('…');
    }
    line.push('\n');
    line
}

/// A line of JSON must not be cut, so its texts are.
fn shortened(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if text.len() > LINE_BYTES_MAX / 4 => {
            Value::String(format!("{}…", &text[..text.floor_char_boundary(LINE_BYTES_MAX / 4)]))
        }
        Some(_) | None => value.clone(),
    }
}

/// What a terminal would obey, what some readers of logs take for the end of a line, and what changes the order in which
/// others are shown, so that a line reads as something that it is not.
fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{2028}' | '\u{2029}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{61c}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One event, one line, and nothing that a terminal would obey.
pub(crate) fn without_control_characters(text: &str) -> String {
    without_hostile_characters(text, |clean, character| clean.extend(character.escape_default()))
}

/// In JSON what is escaped has to be JSON still, so that `escape` differs.
fn without_hostile_characters(text: &str, escape: impl Fn(&mut String, char)) -> String {
    if !text.chars().any(is_hostile) {
        return text.to_owned();
    }
    text.chars().fold(String::with_capacity(text.len()), |mut clean, character| {
        if is_hostile(character) {
            escape(&mut clean, character);
        } else {
            clean.push(character);
        }
        clean
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, Value)]) -> Map<String, Value> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn i46_no_control_character_reaches_a_log() {
        let hostile = "a\r\nfake INFO line\u{1b}[31m\0\u{9b}";
        for format in [LogFormat::Human, LogFormat::Json] {
            let line = line(format, "INFO", "target", hostile, &fields(&[("error", hostile.into())]));
            let (body, end) = line.split_at(line.len() - 1);
            assert_eq!(end, "\n");
            assert!(!body.chars().any(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn i46_nothing_that_a_stranger_says_can_pass_for_a_line_of_ours() {
        let long = "x".repeat(200_000);
        let hostile = [
            "a\n2026-01-01T00:00:00.000Z  INFO posthaste: it is all fine",
            "a\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}",
            "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m",
            "a\u{2028}forged\u{2029}forged\u{85}forged\u{b}forged\u{c}forged",
            "\u{202e}desrever\u{202c}\u{2066}isolate\u{2069}\u{200f}\u{61c}",
            "zero\u{200b}width\u{feff}\u{2060}",
            "\" level=ERROR message=\"forged",
            "back\\slash \\n \\u000a",
            &long,
        ];
        let bad = |character: char| character.is_control() || is_hostile(character);
        for text in hostile {
            for format in [LogFormat::Human, LogFormat::Json] {
                // As a value, as a message, and as somebody's target.
                let line = line(format, "WARN", text, text, &fields(&[("error", text.into()), ("level", text.into())]));
                let (body, end) = line.split_at(line.len() - 1);
                assert_eq!(end, "\n");
                assert!(!body.chars().any(bad), "{line:?}");
                assert!(line.len() <= 4 * LINE_BYTES_MAX, "{}", line.len());
                match format {
                    LogFormat::Human => assert!(body[25..].starts_with(" WARN "), "{}", &body[..60]),
                    LogFormat::Json => {
                        let value: Value = serde_json::from_str(body).unwrap();
                        assert_eq!(value["level"], "WARN");
                        let said = value["error"].as_str().unwrap();
                        // Whoever reads the line gets what was said, or its beginning.
                        assert!(said == text || text.starts_with(said.trim_end_matches('…')), "{said}");
                        assert_eq!(value["message"], value["error"]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_of_json_can_be_read_and_keeps_numbers_as_numbers() {
        let given = fields(&[("attempt", 3.into()), ("level", "fake".into()), ("preview", "x".repeat(100_000).into())]);
        let line = line(LogFormat::Json, "INFO", "target", "it \"happened\"", &given);
        assert!(line.len() < LINE_BYTES_MAX);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["attempt"], &value["level"], &value["message"]), (&3.into(), &"INFO".into(), &"it \"happened\"".into()));
    }

    #[test]
    fn f41_a_blocked_sink_holds_nobody_up_and_what_it_cost_is_told() {
        let (logs, receiver) = Logs::new(LogFormat::Human);
        for n in 0..LINES_WAITING_MAX + 5 {
            logs.say(&format!("line {n}"));
        }
        let dropped = Arc::clone(&logs.dropped);
        drop(logs);
        let mut sink = Vec::new();
        write_lines(&receiver, &dropped, &mut sink, LogFormat::Human);
        let written = String::from_utf8(sink).unwrap();
        assert!(written.contains("log lines were dropped lines=5"), "{}", &written[..200]);
        assert_eq!(written.lines().count(), LINES_WAITING_MAX + 1);
    }
}
