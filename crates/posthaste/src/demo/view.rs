//! What a person sees of it: one line for each endpoint, and what has landed last.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::receiver::Arrival;

const LANDINGS_SHOWN: usize = 8;

/// One endpoint, as the table has it.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) story: String,
    pub(super) published: u64,
    pub(super) delivered: u64,
    pub(super) why: String,
}

#[derive(Default)]
pub(super) struct View {
    landings: VecDeque<String>,
    /// How many lines the last picture had, on a terminal where it can be drawn over.
    drawn: Option<usize>,
}

impl View {
    /// On a terminal each picture is drawn over the last one; elsewhere only the last one is shown.
    pub(super) fn new(is_terminal: bool) -> View {
        View { landings: VecDeque::new(), drawn: is_terminal.then_some(0) }
    }

    pub(super) fn landed(&mut self, after: Duration, arrival: &Arrival) {
        let mark = if arrival.status.is_success() { '✓' } else { '✗' };
        let line = format!(
            "  {:>6.1} s  {mark} {:<8} {:<15} try {}  answered {}",
            after.as_secs_f64(),
            arrival.name,
            event_type(arrival),
            arrival.header("posthaste-attempt"),
            arrival.status.as_u16(),
        );
        self.landings.push_back(line);
        if self.landings.len() > LANDINGS_SHOWN {
            self.landings.pop_front();
        }
    }

    /// Draws it, if it can be drawn over.
    pub(super) fn draw(&mut self, rows: &[Row]) {
        let Some(drawn) = self.drawn else { return };
        let picture = self.picture(rows);
        let mut out = String::new();
        if drawn > 0 {
            let _ = write!(out, "\x1b[{drawn}A");
        }
        for line in picture.lines() {
            let _ = writeln!(out, "\x1b[K{line}");
        }
        print!("{out}");
        self.drawn = Some(picture.lines().count());
    }

    pub(super) fn picture(&self, rows: &[Row]) -> String {
        let mut picture = String::new();
        let _ = writeln!(picture, "  {:<9} {:<34} {:>9} {:>7}  why it waits", "endpoint", "its receiver", "delivered", "waiting");
        for row in rows {
            let waiting = row.published.saturating_sub(row.delivered);
            let _ = writeln!(picture, "  {:<9} {:<34} {:>9} {:>7}  {}", row.name, row.story, row.delivered, waiting, row.why);
        }
        let _ = writeln!(picture, "\n  latest");
        for place in 0..LANDINGS_SHOWN {
            let _ = writeln!(picture, "{}", self.landings.get(place).map_or("", String::as_str));
        }
        picture
    }
}

/// In words, why a delivery waits, from how the API shows it.
pub(super) fn why(delivery: &Value, now: Timestamp) -> String {
    let status = delivery["status"].as_str().unwrap_or("?");
    let Some(reason) = delivery["hold_reason"].as_str() else {
        return status.to_owned();
    };
    let next = delivery["next_attempt_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let until = next.map_or_else(String::new, |next| {
        let seconds = next.duration_since(now).as_secs().max(0);
        if seconds < 120 { format!(", next in {seconds} s") } else { format!(", until {}", next.strftime("%H:%M UTC")) }
    });
    format!("{reason}{until}")
}

fn event_type(arrival: &Arrival) -> String {
    let body: Option<Value> = serde_json::from_slice(&arrival.body).ok();
    body.and_then(|body| body["type"].as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_hold_is_told_with_its_end() {
        let now: Timestamp = "2026-11-16T04:00:00Z".parse().unwrap();
        let check = |delivery: Value, expected: &str| assert_eq!(why(&delivery, now), expected);
        check(json!({"status": "delivering", "hold_reason": null}), "delivering");
        check(json!({"status": "scheduled", "hold_reason": "paused", "next_attempt_at": null}), "paused");
        let retry = json!({"status": "scheduled", "hold_reason": "retry", "next_attempt_at": "2026-11-16T04:00:05Z"});
        check(retry, "retry, next in 5 s");
        let quiet = json!({"status": "scheduled", "hold_reason": "quiet_hours", "next_attempt_at": "2026-11-16T06:30:00Z"});
        check(quiet, "quiet_hours, until 06:30 UTC");
    }
}
