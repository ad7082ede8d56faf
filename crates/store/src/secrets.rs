//! What is sealed of an endpoint: its secrets and its headers, bound to it, so that they open nowhere else.

use posthaste_core::endpoint::{Headers, Signing};
use posthaste_core::id::EndpointId;
use posthaste_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::columns::corrupt;
use crate::{Error, Keyring, SecretText, StoredSecret, document};

#[derive(Serialize, Deserialize)]
struct Contents {
    secrets: Vec<Secret>,
    headers: String,
}

#[derive(Serialize, Deserialize)]
struct Secret {
    text: String,
    until_ms: Option<i64>,
}

pub(crate) fn seal(keyring: &Keyring, endpoint: EndpointId, secrets: &[StoredSecret], headers: &Headers) -> Vec<u8> {
    let secret = |stored: &StoredSecret| Secret { text: stored.secret.0.clone(), until_ms: stored.until.map(Timestamp::as_millis) };
    let contents = Contents { secrets: secrets.iter().map(secret).collect(), headers: document::headers(headers) };
    let plain = zeroize::Zeroizing::new(serde_json::to_vec(&contents).expect("texts and numbers"));
    keyring.seal(&context(endpoint), &plain)
}

pub(crate) fn open(
    keyring: &Keyring,
    endpoint: EndpointId,
    sealed: &[u8],
    signing: &Signing,
) -> Result<(Vec<StoredSecret>, Headers), Error> {
    let plain = keyring.open(&context(endpoint), sealed).map_err(corrupt("secret"))?;
    let contents: Contents = serde_json::from_slice(&plain).map_err(corrupt("secret"))?;
    let secret =
        |secret: Secret| StoredSecret { secret: SecretText(secret.text), until: secret.until_ms.map(Timestamp::from_millis) };
    Ok((contents.secrets.into_iter().map(secret).collect(), document::read_headers(&contents.headers, signing)?))
}

/// Sealed anew under the present master key, if it was under an earlier one.
pub(crate) fn reseal(keyring: &Keyring, endpoint: EndpointId, sealed: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    if keyring.is_current(sealed) {
        return Ok(None);
    }
    let plain = keyring.open(&context(endpoint), sealed).map_err(corrupt("secret"))?;
    Ok(Some(keyring.seal(&context(endpoint), &plain)))
}

fn context(endpoint: EndpointId) -> Vec<u8> {
    [b"endpoint".as_slice(), &endpoint.to_bytes()].concat()
}
