//! What is kept of an answer's body: enough to read an error, too little to store someone's data.

use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use crate::redact::{self, OwnSecrets};

pub const RESPONSE_PREVIEW_BYTES_MAX: usize = 4 * 1024;
/// How much of a body is read only so that the connection can be used again.
const DRAINED_BYTES_MAX: usize = 24 * 1024;
/// How long a body may take once the head has said what we wanted to know. Below a second, so that the attempt ends within its
/// timeout and a second.
const BODY_TIME_MAX: Duration = Duration::from_millis(750);

pub(crate) struct Preview {
    pub(crate) text: Option<String>,
    /// The body has ended: another request may follow on the same connection.
    pub(crate) is_whole: bool,
}

/// The beginning of the body. The head has decided already; the body may be endless, and is cut off.
pub(crate) async fn read(response: Response<Incoming>, secrets: &OwnSecrets) -> Preview {
    let (head, body) = response.into_parts();
    let mut kept = Vec::new();
    // Ended in the middle by the clock, what has come so far is what there is.
    let is_whole = tokio::time::timeout(BODY_TIME_MAX, read_into(&mut kept, body)).await.unwrap_or(false);
    let text = match compression(&head.headers) {
        // Nothing is decompressed, and nobody could redact what they cannot read.
        Some(compression) if !kept.is_empty() => Some(format!("({compression}, not shown)")),
        Some(_) => None,
        None => in_text(&kept, secrets),
    };
    Preview { text, is_whole }
}

/// Answers whether the body has ended.
async fn read_into(kept: &mut Vec<u8>, mut body: Incoming) -> bool {
    let is_long = body.size_hint().lower() > DRAINED_BYTES_MAX as u64;
    let enough = if is_long { RESPONSE_PREVIEW_BYTES_MAX } else { DRAINED_BYTES_MAX };
    let mut read = 0;
    while read < enough {
        match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => {
                let Some(bytes) = frame.data_ref() else { continue };
                read += bytes.len();
                let room = RESPONSE_PREVIEW_BYTES_MAX - kept.len();
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        }
    }
    body.is_end_stream()
}

/// What the body is compressed with, if it says so.
fn compression(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_ENCODING)?.to_str().ok()?.trim();
    let is_plain = value.is_empty() || value.eq_ignore_ascii_case("identity");
    let is_known = ["gzip", "x-gzip", "br", "deflate", "compress", "zstd"].iter().any(|known| value.eq_ignore_ascii_case(known));
    if is_plain {
        None
    } else if is_known {
        Some(format!("compressed with {}", value.to_ascii_lowercase()))
    } else {
        Some("in an encoding that is not text".to_owned())
    }
}

/// As text that every store and every screen takes.
fn in_text(kept: &[u8], secrets: &OwnSecrets) -> Option<String> {
    if kept.is_empty() {
        return None;
    }
    let text: String = String::from_utf8_lossy(kept)
        .chars()
        .map(|character| if character.is_control() && !"\n\r\t".contains(character) { '\u{fffd}' } else { character })
        .collect();
    let mut text = redact::redact(&text, secrets);
    // What was not text, or a secret, has grown.
    text.truncate(text.floor_char_boundary(RESPONSE_PREVIEW_BYTES_MAX));
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_text_without_control_characters_and_not_too_long() {
        let none = OwnSecrets::default();
        assert_eq!(in_text(b"a\0b\x1b[31m\r\n\tc\xff", &none).as_deref(), Some("a\u{fffd}b\u{fffd}[31m\r\n\tc\u{fffd}"));
        assert_eq!(in_text(b"", &none), None);
        assert!(in_text(&[0xff; 4096], &none).unwrap().len() <= RESPONSE_PREVIEW_BYTES_MAX);
    }

    #[test]
    fn what_is_compressed_is_named_in_our_own_words() {
        let said = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, value.parse().unwrap());
            compression(&headers)
        };
        assert_eq!(said("GZip").as_deref(), Some("compressed with gzip"));
        assert_eq!(said("identity"), None);
        assert_eq!(said("<script>").as_deref(), Some("in an encoding that is not text"));
    }
}
