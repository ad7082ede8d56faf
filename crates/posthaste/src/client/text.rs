//! Text that somebody else has written, made harmless for a terminal; and times in words.
//!
//! A description, a URL or a receiver's answer may hold escape sequences that clear the screen, change the title or type
//! commands. What a terminal would obey is shown as its number instead.

use std::fmt::Write;

use jiff::Timestamp;

/// On one line, with nothing in it that a terminal or the eye would be deceived by.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            _ if is_deceptive(character) => {
                write!(shown, "\\u{{{:x}}}", u32::from(character)).expect("a String takes everything");
            }
            _ => shown.push(character),
        }
    }
    shown
}

/// The same JSON, with what a terminal would obey written as JSON's own escapes. Control characters that JSON allows inside
/// of strings as they are (DEL and the second set of them) occur nowhere else in it.
pub(super) fn escaped_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_deceptive(character) && !matches!(character, '\n' | '\r' | '\t') {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                write!(shown, "\\u{unit:04x}").expect("a String takes everything");
            }
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Control characters, those that turn the direction of writing round, and those that break lines or tag invisibly.
fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}')
}

/// At most so many characters of it.
pub(super) fn shortened(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(characters_max - 1).chain(['…']).collect(),
    }
}

/// Who is going to read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) is_terminal: bool,
    pub(super) now: Timestamp,
}

impl Reader {
    /// For people how long ago or how soon; for programs as it is, so that the same thing is always shown as the same text.
    pub(super) fn time(&self, text: &str) -> String {
        match text.parse::<Timestamp>() {
            Ok(time) if self.is_terminal => relative(time, self.now),
            Ok(_) | Err(_) => escaped(text),
        }
    }
}

/// `3 s ago`, `in 12 min`; a date where that would not help.
fn relative(time: Timestamp, now: Timestamp) -> String {
    let seconds = (time.as_millisecond() - now.as_millisecond()) / 1000;
    let distance = seconds.unsigned_abs();
    let length = match distance {
        0..=1 => return "now".to_owned(),
        2..=119 => format!("{distance} s"),
        120..=7_199 => format!("{} min", distance / 60),
        7_200..=129_599 => format!("{} h", distance / 3_600),
        129_600.. => return time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
    };
    if seconds < 0 { format!("{length} ago") } else { format!("in {length}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_or_an_eye_is_deceived_by_comes_through() {
        let hostile = "a\x1b[2J\x07b\u{9b}31m\r\n\t\x7f\u{202e}fdp\u{feff}";
        let shown = escaped(hostile);
        assert_eq!(shown, r"a\u{1b}[2J\u{7}b\u{9b}31m\r\n\t\u{7f}\u{202e}fdp\u{feff}");
        assert!(shown.is_ascii());
        assert_eq!(escaped("grüße 郵便 🚚"), "grüße 郵便 🚚");
    }

    #[test]
    fn json_for_a_terminal_says_the_same_without_control_characters() {
        let hostile = serde_json::to_string(&"\u{9b}31m\x7f\u{202e}\x1b\u{e0041}").unwrap();
        let shown = escaped_json(&hostile);
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), serde_json::from_str::<String>(&hostile).unwrap());
    }

    #[test]
    fn times_are_told_as_people_tell_them() {
        let now: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
        let told = |text: &str| Reader { is_terminal: true, now }.time(text);
        assert_eq!(told("2026-11-16T07:59:48.000Z"), "12 s ago");
        assert_eq!(told("2026-11-16T08:00:30.500Z"), "in 30 s");
        assert_eq!(told("2026-11-16T08:00:00.400Z"), "now");
        assert_eq!(told("2026-11-16T10:10:00.000Z"), "in 2 h");
        assert_eq!(told("2026-10-01T10:10:00.000Z"), "2026-10-01 10:10 UTC");
        assert_eq!(told("\x1b"), r"\u{1b}");
        let program = Reader { is_terminal: false, now };
        assert_eq!(program.time("2026-11-16T07:59:48.000Z"), "2026-11-16T07:59:48.000Z");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("郵便局", 3), "郵便局");
        assert_eq!(shortened("郵便局長", 3), "郵便…");
    }
}
