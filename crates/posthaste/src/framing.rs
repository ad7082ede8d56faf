//! Where the head of a request ends and the next one begins, read from the bytes of a connection as they pass.
//!
//! The HTTP library accepts lines that end without a carriage return, and a length beside a transfer encoding; a proxy in front of us may
//! read the same bytes another way, and take a part of one request for another. Such a head is refused. Nothing is copied but a line that
//! comes in pieces; a head of 300 bytes costs some 300 nanoseconds.

/// A head that is larger than any that the API would take: its own limits are 8 KiB for the address and 32 KiB for the headers.
const HEAD_BYTES_MAX: usize = 48 * 1024;
/// The same for its first line.
const FIRST_LINE_BYTES_MAX: usize = 16 * 1024;

/// What is wrong with a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// A line that ends without a carriage return, or goes on in the next.
    Line,
    /// Where its body ends can be read in two ways, or in none.
    Length,
    AddressTooLong,
    HeadersTooLarge,
    /// Too many unfinished heads are in memory.
    NoRoom,
}

#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    is_first_line: bool,
    head_bytes: usize,
    length: Option<u64>,
    is_chunked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    Body {
        left: u64,
    },
    ChunkSize {
        size: u64,
        is_in_digits: bool,
    },
    Chunk {
        left: u64,
    },
    Trailers,
    /// The library refuses what comes, in its own words.
    Unreadable,
}

impl Default for Framing {
    fn default() -> Framing {
        Framing { state: State::Head, line: Vec::new(), is_first_line: true, head_bytes: 0, length: None, is_chunked: false }
    }
}

impl Framing {
    /// Bytes of a head that has begun and is not complete.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Looks at what has arrived. What is refused is refused at its place: everything before it may go on.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Result<(), (usize, Refusal)> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            at += match self.state {
                State::Head | State::Trailers => self.pass_line(rest).map_err(|(place, refusal)| (at + place, refusal))?,
                State::Body { left } => self.pass_some(rest, left, |left| State::Body { left }, State::Head),
                State::Chunk { left } => {
                    let after = State::ChunkSize { size: 0, is_in_digits: true };
                    self.pass_some(rest, left, |left| State::Chunk { left }, after)
                }
                State::ChunkSize { size, is_in_digits } => {
                    self.pass_size(rest[0], size, is_in_digits);
                    1
                }
                State::Unreadable => rest.len(),
            };
        }
        Ok(())
    }

    fn pass_some(&mut self, rest: &[u8], left: u64, going_on: impl Fn(u64) -> State, after: State) -> usize {
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let left = left - passed as u64;
        self.state = if left == 0 { after } else { going_on(left) };
        passed
    }

    fn pass_size(&mut self, byte: u8, size: u64, is_in_digits: bool) {
        let digit = char::from(byte).to_digit(16).map(u64::from);
        self.state = match (byte, digit) {
            (b'\n', _) if size == 0 => {
                self.begin_head(State::Trailers);
                self.state
            }
            // With the line end that follows it.
            (b'\n', _) => State::Chunk { left: size.saturating_add(2) },
            (_, Some(digit)) if is_in_digits => match size.checked_mul(16).and_then(|size| size.checked_add(digit)) {
                Some(size) => State::ChunkSize { size, is_in_digits },
                None => State::Unreadable,
            },
            _ => State::ChunkSize { size, is_in_digits: false },
        };
    }

    fn begin_head(&mut self, state: State) {
        self.line.clear();
        self.state = state;
        self.is_first_line = state == State::Head;
        self.head_bytes = 0;
        self.length = None;
        self.is_chunked = false;
    }

    fn pass_line(&mut self, rest: &[u8]) -> Result<usize, (usize, Refusal)> {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let passed = end.map_or(rest.len(), |end| end + 1);
        self.head_bytes += passed;
        if self.is_first_line && self.line.len() + passed > FIRST_LINE_BYTES_MAX {
            return Err((0, Refusal::AddressTooLong));
        }
        if self.head_bytes > HEAD_BYTES_MAX {
            return Err((0, Refusal::HeadersTooLarge));
        }
        let Some(end) = end else {
            self.line.extend_from_slice(rest);
            return Ok(passed);
        };
        if self.line.is_empty() {
            self.read_line(&rest[..end]).map_err(|refusal| (0, refusal))?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&rest[..end]);
            let read = self.read_line(&line);
            line.clear();
            self.line = line;
            read.map_err(|refusal| (0, refusal))?;
        }
        Ok(passed)
    }

    /// A line without its line feed.
    fn read_line(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let line = line.strip_suffix(b"\r").ok_or(Refusal::Line)?;
        if self.is_first_line {
            // Empty lines before a request are allowed, and mean nothing.
            self.is_first_line = line.is_empty();
            return Ok(());
        }
        if line.is_empty() {
            return self.end_head();
        }
        if matches!(line[0], b' ' | b'\t') {
            return Err(Refusal::Line);
        }
        // The library says what is wrong with a header that has no colon.
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = text.and_then(|text| text.parse().ok()).ok_or(Refusal::Length)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(Refusal::Length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refusal::Length);
            }
            self.is_chunked = true;
        }
        Ok(())
    }

    fn end_head(&mut self) -> Result<(), Refusal> {
        if self.state == State::Trailers {
            self.begin_head(State::Head);
            return Ok(());
        }
        let state = match (self.is_chunked, self.length) {
            (true, Some(_)) => return Err(Refusal::Length),
            (true, None) => State::ChunkSize { size: 0, is_in_digits: true },
            (false, Some(left)) if left > 0 => State::Body { left },
            (false, Some(_) | None) => State::Head,
        };
        self.begin_head(State::Head);
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same however it is cut into pieces. Answers what was refused, and whether the next head would begin here.
    fn check(bytes: &[u8]) -> Result<bool, Refusal> {
        let whole = pass(bytes, bytes.len().max(1));
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(pass(bytes, size), whole, "in pieces of {size}: {}", String::from_utf8_lossy(bytes));
        }
        whole
    }

    fn pass(bytes: &[u8], size: usize) -> Result<bool, Refusal> {
        let mut framing = Framing::default();
        for piece in bytes.chunks(size) {
            framing.pass(piece).map_err(|(_, refusal)| refusal)?;
        }
        Ok(framing.state == State::Head && framing.head_bytes() == 0)
    }

    #[test]
    fn the_next_head_is_found_behind_every_kind_of_body() {
        for whole in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\na\nb\n",
            "POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\na\nb\n",
            "POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: y\r\n\r\n",
        ] {
            assert_eq!(check(whole.as_bytes()), Ok(true), "{whole:?}");
            assert_eq!(check(whole.repeat(3).as_bytes()), Ok(true), "{whole:?} three times");
            let bad = format!("{whole}GET / HTTP/1.1\nhost: a\r\n\r\n");
            assert_eq!(check(bad.as_bytes()), Err(Refusal::Line), "{bad:?}");
        }
        assert_eq!(check(b"GET / HTTP/1.1\r\nhost"), Ok(false));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (head, refusal) in [
            ("GET / HTTP/1.1\nhost: a\n\n", Refusal::Line),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", Refusal::Line),
            ("GET / HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n", Refusal::Line),
            ("POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", Refusal::Length),
            ("POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", Refusal::Length),
            ("POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", Refusal::Length),
            ("POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", Refusal::Length),
            ("POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n", Refusal::Length),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", Refusal::Length),
        ] {
            assert_eq!(check(head.as_bytes()), Err(refusal), "{head:?}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(FIRST_LINE_BYTES_MAX));
        assert_eq!(check(long.as_bytes()), Err(Refusal::AddressTooLong));
        let many = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(HEAD_BYTES_MAX / 6 + 1));
        assert_eq!(check(many.as_bytes()), Err(Refusal::HeadersTooLarge));
    }
}
