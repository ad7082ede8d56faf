//! Earlier versions of endpoints, so that history shows where an attempt went and not where it would go today.
//!
//! The present configuration is in the endpoint itself. A row is written only when a change replaces the URL, the payload format
//! or the header names. It holds no secrets and no header values, and it goes once no attempt can refer to it.

use std::time::Duration;

use posthaste_core::endpoint::{Endpoint, Headers, PayloadFormat};

use crate::Error;

/// What an attempt was sent with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointVersion {
    pub version: u64,
    pub url: String,
    pub payload_format: PayloadFormat,
    /// `None` if the endpoint's headers cannot be read.
    pub header_names: Option<Vec<String>>,
}

/// Attempts that a node started just before it received a change are recorded after the change. A delivery that is made later than
/// this after a change is sent by the new version.
pub(crate) const STRAGGLERS_MAX: Duration = Duration::from_mins(10);

/// What is kept of a configuration that is replaced.
#[derive(PartialEq, Eq)]
pub(crate) struct VersionColumns {
    pub(crate) url: String,
    pub(crate) payload_format: &'static str,
    pub(crate) header_names: String,
}

impl VersionColumns {
    fn of(endpoint: &Endpoint) -> VersionColumns {
        VersionColumns {
            url: endpoint.url.clone(),
            payload_format: format_name(endpoint.payload_format),
            header_names: header_names(&endpoint.headers).join("\n"),
        }
    }

    /// What has to be kept when `before` becomes `after`; `None` if history would show the same.
    pub(crate) fn replaced(before: &Endpoint, after: &Endpoint) -> Option<VersionColumns> {
        let before = VersionColumns::of(before);
        (before != VersionColumns::of(after)).then_some(before)
    }
}

pub(crate) fn header_names(headers: &Headers) -> Vec<String> {
    headers.iter().map(|(name, _)| name.to_owned()).collect()
}

/// A row of `endpoint_versions`, for an attempt of this version.
pub(crate) fn read(version: u64, url: String, payload_format: &str, header_names: &str) -> Result<EndpointVersion, Error> {
    let all = [PayloadFormat::Envelope, PayloadFormat::Data, PayloadFormat::CloudEvents];
    let payload_format = all.into_iter().find(|format| format_name(*format) == payload_format);
    Ok(EndpointVersion {
        version,
        url,
        payload_format: payload_format.ok_or(Error::Corrupt { what: "payload format" })?,
        header_names: Some(header_names.lines().map(str::to_owned).collect()),
    })
}

fn format_name(format: PayloadFormat) -> &'static str {
    match format {
        PayloadFormat::Envelope => "envelope",
        PayloadFormat::Data => "data",
        PayloadFormat::CloudEvents => "cloudevents",
    }
}
