//! Signs webhooks and verifies them.
//!
//! Posthaste signs with this crate, and a receiver written in Rust can verify with it. It has no clock and no
//! randomness: the time is an argument, and so are the bytes of a new secret.
//!
//! - [`standard`]: Standard Webhooks, `v1` (HMAC-SHA256) and `v1a` (Ed25519). The default.
//! - [`timestamp_hex`]: `v1=<hex>` or `sha256=<hex>` over `timestamp.body`, for receivers that expect that.
//!
//! ```
//! use posthaste_signing::{Key, Received, Secret, TOLERANCE, standard};
//!
//! let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let body = br#"{"test": 2432232314}"#;
//! let signature = standard::sign(&[Key::Shared(&secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body);
//! assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
//!
//! let received = Received { timestamp: "1614265330", signature: &signature, body };
//! standard::verify("msg_p5jXN8AQM9LWM0D4loKWxJek", &received, 1614265390, TOLERANCE, &[Key::Shared(&secret)])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod secret;
pub mod standard;
pub mod timestamp_hex;

use std::time::Duration;

pub use secret::{HexSecret, Key, PublicKey, Secret, SecretError, SigningKey};

/// How far a signature's time may be from the receiver's clock: enough for a slow network, too little for a replay.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// More signatures than this in one header are not looked at. A rotation needs two.
const SIGNATURES_MAX: usize = 16;

/// What a receiver has in hand, besides the id.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub timestamp: &'a str,
    pub signature: &'a str,
    /// The bytes as they came, before anything parsed them.
    pub body: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("the timestamp header is not a whole number of seconds since 1970")]
    Timestamp,
    #[error("signed too long ago; a copy of an old request, or a clock that is ahead")]
    TooOld,
    #[error("signed in the future; the receiver's clock is behind")]
    TooNew,
    #[error("no signature matches; the secret is another one, or the body is not byte for byte what was sent")]
    NoMatch,
}

/// The seconds that a timestamp header names, if they are near enough to `now`.
fn timely(timestamp: &str, now: i64, tolerance: Duration) -> Result<i64, VerifyError> {
    if timestamp.is_empty() || !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(VerifyError::Timestamp);
    }
    let signed_at: i64 = timestamp.parse().map_err(|_| VerifyError::Timestamp)?;
    let tolerance = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    if signed_at < now.saturating_sub(tolerance) {
        Err(VerifyError::TooOld)
    } else if signed_at > now.saturating_add(tolerance) {
        Err(VerifyError::TooNew)
    } else {
        Ok(signed_at)
    }
}
