//! `posthaste verify`: a signature checked by hand, without a server.
//!
//! For whoever writes a receiver and is told that no signature matches. A signature says only yes or no, so that a no is looked
//! into: is it too old, is it of another scheme, was the body re-encoded or given a line's end on its way, is the id another
//! one than the body's own? What cannot be known is said to be one of what remains.

use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use posthaste_signing::{HexSecret, Key, PublicKey, Received, Secret, SigningKey, TOLERANCE, VerifyError, standard, timestamp_hex};
use serde_json::{Value, json};

use super::EXIT_CODES;
use super::body::{file_or_stdin, input};
use super::failure::Failure;
use super::text::escaped;

#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Verify {
    /// A secret of the endpoint: the text, @file, or - for stdin; several times during a rotation
    #[arg(long, required_unless_present = "public_key")]
    secret: Vec<String>,
    /// The public key of an endpoint that signs by Ed25519: the text or @file
    #[arg(long, value_name = "KEY")]
    public_key: Vec<String>,
    /// The body as it came, before anything parsed it: a file, or - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    body: String,
    /// What webhook-id says; timestamp-hex does not need it
    #[arg(long)]
    id: Option<String>,
    /// What webhook-timestamp says
    #[arg(long)]
    timestamp: Option<String>,
    /// What webhook-signature says
    #[arg(long)]
    signature: Option<String>,
    /// A header as it came, as in 'webhook-timestamp: 1794806377'; several times, instead of the three above
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Seen from the signature unless said
    #[arg(long)]
    scheme: Option<Scheme>,
    /// How far the timestamp may be from now
    #[arg(long, value_name = "SECONDS", default_value_t = TOLERANCE.as_secs())]
    tolerance: u64,
    /// Check as of this time (RFC 3339) instead of now
    #[arg(long, value_name = "TIME")]
    now: Option<String>,
    /// What was found, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Scheme {
    Standard,
    StandardEd25519,
    TimestampHex,
}

const SCHEMES: [Scheme; 3] = [Scheme::Standard, Scheme::StandardEd25519, Scheme::TimestampHex];
const HEX_PREFIXES: [&str; 2] = ["v1=", "sha256="];

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Standard => "standard",
            Scheme::StandardEd25519 => "standard-ed25519",
            Scheme::TimestampHex => "timestamp-hex",
        }
    }

    /// By what a signature of it begins with.
    fn is_in(self, signature: &str) -> bool {
        let begins = |beginnings: &[&str]| {
            signature.split([' ', ',']).any(|entry| beginnings.iter().any(|beginning| entry.starts_with(beginning)))
        };
        match self {
            Scheme::Standard => signature.split(' ').any(|entry| entry.starts_with("v1,")),
            Scheme::StandardEd25519 => signature.split(' ').any(|entry| entry.starts_with("v1a,")),
            Scheme::TimestampHex => begins(&HEX_PREFIXES),
        }
    }
}

/// What to verify with, as it was given. Which of them fits follows from the scheme.
struct Keys {
    secrets: Vec<String>,
    public: Vec<PublicKey>,
}

/// What came, apart from the keys.
struct Message {
    id: Option<String>,
    timestamp: String,
    signature: String,
    body: Vec<u8>,
}

/// What was found out.
struct Finding {
    is_valid: bool,
    /// One word for programs.
    code: &'static str,
    words: String,
}

impl Verify {
    /// Whether it is valid.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let keys = self.keys()?;
        let message = self.message()?;
        let now = match &self.now {
            Some(text) => {
                text.parse::<Timestamp>().map_err(|_| Failure::usage("--now is not a time such as 2026-11-16T08:00:00Z"))?
            }
            None => Timestamp::now(),
        };
        let finding = find(&keys, &message, self.scheme, now.as_second(), Duration::from_secs(self.tolerance));
        let mut out = std::io::stdout().lock();
        if self.json {
            let shown: Value = json!({"valid": finding.is_valid, "code": finding.code, "detail": finding.words});
            writeln!(out, "{shown}")?;
        } else {
            writeln!(out, "{}: {}", if finding.is_valid { "valid" } else { "not valid" }, escaped(&finding.words))?;
        }
        out.flush()?;
        Ok(finding.is_valid)
    }

    /// What is wrong with a key is said without repeating it.
    fn keys(&self) -> Result<Keys, Failure> {
        if self.body == "-" && self.secret.iter().chain(&self.public_key).any(|given| given == "-") {
            return Err(Failure::usage("the secret and the body cannot both come from stdin; name a file for one of them"));
        }
        let mut secrets = Vec::new();
        for given in &self.secret {
            let secret = input(given)?.trim().to_owned();
            let looks_standard = secret.starts_with("whsec_") || secret.starts_with("whsk_");
            let is_standard = Secret::parse(&secret).is_ok() || SigningKey::parse(&secret).is_ok();
            let is_hex = !looks_standard && HexSecret::parse(&secret).is_ok();
            if !is_standard && !is_hex {
                let message = "a secret is not usable: it is `whsec_` and base64, `whsk_` and base64, or 16 to 256 visible characters \
                               for timestamp-hex; is it whole?";
                return Err(Failure::usage(message));
            }
            secrets.push(secret);
        }
        let public = |given: &String| input(given).and_then(|text| PublicKey::parse(text.trim()).map_err(Failure::usage));
        let public = self.public_key.iter().map(public).collect::<Result<_, _>>()?;
        Ok(Keys { secrets, public })
    }

    fn message(&self) -> Result<Message, Failure> {
        let header = |names: &[&str]| {
            self.header.iter().find_map(|header| {
                let (name, value) = header.split_once(':')?;
                names.iter().any(|known| name.trim().eq_ignore_ascii_case(known)).then(|| value.trim().to_owned())
            })
        };
        let needed = |given: &Option<String>, names: &[&str], flag: &str| {
            let found = given.clone().or_else(|| header(names));
            found.ok_or_else(|| Failure::usage(format!("the {flag} is missing: give --{flag}, or the header {} by -H", names[0])))
        };
        Ok(Message {
            id: self.id.clone().or_else(|| header(&["webhook-id", "x-webhook-event-id"])),
            timestamp: needed(&self.timestamp, &["webhook-timestamp", "x-webhook-timestamp"], "timestamp")?,
            signature: needed(&self.signature, &["webhook-signature", "x-webhook-signature"], "signature")?,
            body: file_or_stdin(&self.body)?,
        })
    }
}

fn find(keys: &Keys, message: &Message, scheme: Option<Scheme>, now: i64, tolerance: Duration) -> Finding {
    let wrong = |code, words: String| Finding { is_valid: false, code, words };
    let Some(scheme) = scheme.or_else(|| SCHEMES.into_iter().find(|scheme| scheme.is_in(&message.signature))) else {
        let words = "the signature header has no signature in it that Posthaste makes: `v1,…`, `v1a,…`, `v1=…` or `sha256=…`";
        return wrong("signature_malformed", words.to_owned());
    };
    if scheme != Scheme::TimestampHex && message.id.is_none() {
        return wrong("id_missing", "the id is part of what was signed: give --id, or the header webhook-id by -H".to_owned());
    }
    let ever = Duration::from_secs(u64::from(u32::MAX) * 1000);
    match check(keys, message, scheme, &message.body, now, tolerance) {
        Ok(()) => {
            let age = message.timestamp.parse::<i64>().map_or(0, |signed| now - signed);
            Finding { is_valid: true, code: "valid", words: format!("{}, signed {age} s ago", scheme.name()) }
        }
        Err(error @ (VerifyError::TooOld | VerifyError::TooNew)) => {
            let away = message.timestamp.parse::<i64>().map_or(0, |signed| (now - signed).abs());
            let (code, which) = match error {
                VerifyError::TooNew => ("too_new", "ahead of this clock"),
                VerifyError::TooOld | VerifyError::Timestamp | VerifyError::NoMatch => ("too_old", "ago"),
            };
            let besides = match check(keys, message, scheme, &message.body, now, ever) {
                Ok(()) => "; the signature itself is right",
                Err(_) => "; and no signature matches either",
            };
            let allowed = tolerance.as_secs();
            wrong(code, format!("it was signed {away} s {which}, and {allowed} s are allowed (--tolerance){besides}"))
        }
        Err(VerifyError::Timestamp) => {
            wrong("timestamp_malformed", "the timestamp is not a whole number of seconds since 1970".to_owned())
        }
        Err(VerifyError::NoMatch) => explain(keys, message, scheme, now, tolerance),
    }
}

/// One check with all keys that the scheme can use.
fn check(keys: &Keys, message: &Message, scheme: Scheme, body: &[u8], now: i64, tolerance: Duration) -> Result<(), VerifyError> {
    let received = Received { timestamp: &message.timestamp, signature: &message.signature, body };
    let id = message.id.as_deref().unwrap_or_default();
    match scheme {
        Scheme::Standard => {
            let secrets: Vec<Secret> = keys.secrets.iter().filter_map(|text| Secret::parse(text).ok()).collect();
            let keys: Vec<Key<'_>> = secrets.iter().map(Key::Shared).collect();
            standard::verify(id, &received, now, tolerance, &keys)
        }
        Scheme::StandardEd25519 => {
            let private = keys.secrets.iter().filter_map(|text| SigningKey::parse(text).ok());
            let public: Vec<PublicKey> = private.map(|key| key.public_key()).chain(keys.public.iter().copied()).collect();
            standard::verify_public(id, &received, now, tolerance, &public)
        }
        Scheme::TimestampHex => {
            let secrets: Vec<HexSecret> = keys.secrets.iter().filter_map(|text| HexSecret::parse(text).ok()).collect();
            let tried = HEX_PREFIXES.map(|prefix| timestamp_hex::verify(&received, prefix, now, tolerance, &secrets));
            tried.into_iter().find(Result::is_ok).unwrap_or(tried[0])
        }
    }
}

/// Nothing matches: which part is it?
fn explain(keys: &Keys, message: &Message, scheme: Scheme, now: i64, tolerance: Duration) -> Finding {
    let wrong = |code, words: String| Finding { is_valid: false, code, words };
    let fits = match scheme {
        Scheme::Standard => keys.secrets.iter().any(|text| Secret::parse(text).is_ok()),
        Scheme::StandardEd25519 => !keys.public.is_empty() || keys.secrets.iter().any(|text| SigningKey::parse(text).is_ok()),
        Scheme::TimestampHex => !keys.secrets.is_empty(),
    };
    if !fits {
        let needed = match scheme {
            Scheme::Standard => "a secret that begins with `whsec_`",
            Scheme::StandardEd25519 => "a public key that begins with `whpk_`",
            Scheme::TimestampHex => "a secret",
        };
        return wrong("key_of_another_kind", format!("the signature is of the scheme {}, which needs {needed}", scheme.name()));
    }
    if !scheme.is_in(&message.signature) {
        return wrong("signature_malformed", format!("the signature header has no signature of the scheme {}", scheme.name()));
    }
    for (variant, what) in variants(&message.body) {
        if check(keys, message, scheme, &variant, now, tolerance).is_ok() {
            return wrong(
                "body_changed",
                format!("the body was changed on its way: {what}; the key, the id and the time are right"),
            );
        }
    }
    let own_id = serde_json::from_slice::<Value>(&message.body).ok().and_then(|body| body["id"].as_str().map(str::to_owned));
    if let (Some(own), Some(given)) = (&own_id, &message.id)
        && own != given
    {
        let corrected = Message {
            id: Some(own.clone()),
            timestamp: message.timestamp.clone(),
            signature: message.signature.clone(),
            body: message.body.clone(),
        };
        if check(keys, &corrected, scheme, &message.body, now, tolerance).is_ok() {
            return wrong("id_wrong", format!("the id is wrong: it was signed as {own}"));
        }
    }
    let parts = if scheme == Scheme::TimestampHex { "the timestamp" } else { "the id or the timestamp" };
    let words = format!(
        "no signature matches: the secret is another one, or the body ({} bytes here) is not byte for byte what was sent, or {parts} is \
         not what came with it",
        message.body.len()
    );
    wrong("no_match", words)
}

/// What commonly happens to a body between a server and a file.
fn variants(body: &[u8]) -> Vec<(Vec<u8>, &'static str)> {
    let mut variants = Vec::new();
    let trimmed = body.trim_ascii_end();
    if trimmed.len() < body.len() {
        variants.push((trimmed.to_vec(), "it has a line's end or spaces at its end that were not sent"));
    } else {
        variants.push(([body, b"\n"].concat(), "a line's end at its end is missing"));
    }
    if let Ok(text) = std::str::from_utf8(body) {
        if let Some(bare) = text.strip_prefix('\u{feff}') {
            variants.push((bare.as_bytes().to_vec(), "it begins with a byte order mark"));
        }
        if text.contains("\r\n") {
            variants.push((text.replace("\r\n", "\n").into_bytes(), "its line ends were changed"));
        } else if text.contains('\n') {
            variants.push((text.replace('\n', "\r\n").into_bytes(), "its line ends were changed"));
        }
        if let Some(compact) = compacted(text) {
            variants.push((compact.into_bytes(), "it is the same JSON, written with other spaces; use the bytes as they came"));
        }
    }
    variants
}

/// JSON without the spaces between its parts.
fn compacted(text: &str) -> Option<String> {
    serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
    let mut compact = String::with_capacity(text.len());
    let (mut is_in_string, mut is_escaped) = (false, false);
    for character in text.chars() {
        if is_in_string {
            is_in_string = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
        } else if character.is_ascii_whitespace() {
            continue;
        } else {
            is_in_string = character == '"';
        }
        compact.push(character);
    }
    (compact != text).then_some(compact)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const BODY: &[u8] = br#"{"id":"evt_1","data":{"a":" x \" y "}}"#;

    struct Case {
        keys: Keys,
        message: Message,
    }

    fn case(scheme: Scheme) -> Case {
        let (shared, signing) = (Secret::from_random([7; 32]), SigningKey::from_random([8; 32]));
        let hex = "an-old-secret-of-theirs";
        let (secrets, public, signature) = match scheme {
            Scheme::Standard => {
                (vec![shared.reveal().to_owned()], vec![], standard::sign(&[Key::Shared(&shared)], "evt_1", NOW, BODY))
            }
            Scheme::StandardEd25519 => {
                (vec![], vec![signing.public_key()], standard::sign(&[Key::Signing(&signing)], "evt_1", NOW, BODY))
            }
            Scheme::TimestampHex => {
                let secret = HexSecret::parse(hex).unwrap();
                (vec![hex.to_owned()], vec![], timestamp_hex::sign(&[secret], "sha256=", NOW, BODY))
            }
        };
        let message = Message { id: Some("evt_1".to_owned()), timestamp: NOW.to_string(), signature, body: BODY.to_vec() };
        Case { keys: Keys { secrets, public }, message }
    }

    fn code(case: &Case) -> &'static str {
        find(&case.keys, &case.message, None, NOW + 10, TOLERANCE).code
    }

    #[test]
    fn every_scheme_is_verified_and_each_wrong_part_is_named() {
        for scheme in SCHEMES {
            let changed = |change: &dyn Fn(&mut Case)| {
                let mut case = case(scheme);
                change(&mut case);
                code(&case)
            };
            assert_eq!(changed(&|_| {}), "valid", "{scheme:?}");
            assert_eq!(changed(&|case| case.message.timestamp = (NOW - 1000).to_string()), "too_old");
            assert_eq!(changed(&|case| case.message.timestamp = (NOW + 1000).to_string()), "too_new");
            assert_eq!(changed(&|case| case.message.timestamp = "yesterday".to_owned()), "timestamp_malformed");
            assert_eq!(changed(&|case| case.message.signature = "v9,AAAA".to_owned()), "signature_malformed");
            assert_eq!(changed(&|case| case.message.body.push(b'\n')), "body_changed");
            let spaced = br#"{ "id" : "evt_1", "data": {"a":" x \" y "} }"#;
            assert_eq!(changed(&|case| case.message.body = spaced.to_vec()), "body_changed");
            assert_eq!(changed(&|case| case.message.body = b"{}".to_vec()), "no_match");
            let other = |case: &mut Case| {
                case.keys = Keys {
                    secrets: case.keys.secrets.iter().map(|_| "another-secret-of-theirs".to_owned()).collect(),
                    public: case.keys.public.iter().map(|_| SigningKey::from_random([9; 32]).public_key()).collect(),
                };
                if scheme == Scheme::Standard {
                    case.keys.secrets = vec![Secret::from_random([9; 32]).reveal().to_owned()];
                }
            };
            assert_eq!(changed(&other), "no_match");
            let renamed = changed(&|case| case.message.id = Some("evt_2".to_owned()));
            let nameless = changed(&|case| case.message.id = None);
            if scheme == Scheme::TimestampHex {
                assert_eq!((renamed, nameless), ("valid", "valid"), "the id is no part of it");
            } else {
                assert_eq!((renamed, nameless), ("id_wrong", "id_missing"));
            }
        }
        let mut crossed = case(Scheme::StandardEd25519);
        crossed.keys = case(Scheme::Standard).keys;
        assert_eq!(code(&crossed), "key_of_another_kind");
    }

    #[test]
    fn what_is_too_old_says_whether_it_is_right_otherwise() {
        let mut case = case(Scheme::Standard);
        let old = find(&case.keys, &case.message, None, NOW + 1000, TOLERANCE).words;
        assert!(old.contains("1000 s ago") && old.contains("the signature itself is right"), "{old}");
        case.message.body = b"x".to_vec();
        let old = find(&case.keys, &case.message, None, NOW + 1000, TOLERANCE).words;
        assert!(old.contains("no signature matches either"), "{old}");
    }
}
