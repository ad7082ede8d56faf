//! Turns what is said and remembered about things into JSON text for one column, and back.
//!
//! What a query asks for has a column of its own; the rest is a document, which grows without a migration. A document
//! outlives the version that wrote it. Members that are not known are passed over, because a newer version may have
//! written them. What is absent has the value that it has when nobody says anything, because an older version may not
//! have known it. Whatever is there and does not satisfy the core is `Corrupt`, never guessed.
//!
//! The structs here are the format, and nobody else's. Units are in the names of members; moments count from 1970.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::catalogue::{Contract, Entry};
use posthaste_core::circuit::{Breaker, CircuitPolicy};
use posthaste_core::endpoint::{
    Description, Endpoint, HeaderNames, Headers, HexPrefix, MaxInFlight, Metadata, Override, PayloadFormat, PolicyOverrides,
    Signing, Status, Subscription,
};
use posthaste_core::event::{EventType, TypePatterns};
use posthaste_core::filter::Filter;
use posthaste_core::health::{DisableReason, FailingRun, Health, ReportedStage, Warning};
use posthaste_core::id::{DeliveryId, EndpointId, EndpointUid, TenantId};
use posthaste_core::quiet_hours::{Days, Maintenance, QuietHours, TimeOfDay, Window};
use posthaste_core::retry::{Jitter, RetryPolicy, Strategy};
use posthaste_core::scheduler::LaneMemory;
use posthaste_core::tenant::{Retention, Share, ShareOverrides, Tenant};
use posthaste_core::text::Version;
use posthaste_core::time::{Timestamp, millis};
use posthaste_core::timeout::{Adaptive, Descent, Learned, Mode, Pinned, Tally};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Error, LaneSnapshot};

/// What is known of an endpoint beside its document.
#[derive(Clone, Debug)]
pub(crate) struct EndpointColumns {
    pub(crate) id: EndpointId,
    pub(crate) tenant: TenantId,
    pub(crate) uid: Option<EndpointUid>,
    pub(crate) url: String,
    pub(crate) status: Status,
    /// They may be credentials, so they are kept sealed; see [`headers`].
    pub(crate) headers: Headers,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// All of an endpoint but its [`EndpointColumns`].
pub(crate) fn endpoint(endpoint: &Endpoint) -> String {
    write(&EndpointDocument {
        description: endpoint.description.as_str().to_owned(),
        subscription: SubscriptionDocument::of(&endpoint.subscription),
        max_in_flight: endpoint.max_in_flight.map(MaxInFlight::get),
        policies: PoliciesDocument::of(&endpoint.policies),
        signing: SigningDocument::of(&endpoint.signing),
        payload_format: PayloadFormatDocument::of(endpoint.payload_format),
        metadata: owned(endpoint.metadata.iter()),
    })
}

pub(crate) fn read_endpoint(text: &str, columns: EndpointColumns) -> Result<Endpoint, Error> {
    let read = || {
        let document: EndpointDocument = parse(text)?;
        let EndpointColumns { id, tenant, uid, url, status, headers, created_at, updated_at } = columns;
        let policies = document.policies.read()?;
        warn_of_an_unknown_zone(&id, &policies);
        Ok(Endpoint {
            id,
            tenant,
            uid,
            url,
            description: Description::parse(&document.description)?,
            status,
            subscription: document.subscription.read()?,
            max_in_flight: document.max_in_flight.map(MaxInFlight::new).transpose()?,
            policies,
            signing: document.signing.read()?,
            payload_format: document.payload_format.read(),
            headers,
            metadata: Metadata::new(document.metadata)?,
            created_at,
            updated_at,
        })
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "endpoint" })
}

/// The values may be credentials: this is for sealing, not for a column.
pub(crate) fn headers(headers: &Headers) -> String {
    write(&owned(headers.iter()))
}

pub(crate) fn read_headers(text: &str, signing: &Signing) -> Result<Headers, Error> {
    let read = || {
        let document: BTreeMap<String, String> = parse(text)?;
        Ok(Headers::stored(document.iter().map(|(name, value)| (name.as_str(), value.as_str())), signing)?)
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "headers" })
}

/// All of a tenant but its id.
pub(crate) fn tenant(tenant: &Tenant) -> String {
    write(&TenantDocument {
        share: Some(ShareDocument::of(tenant.share)),
        rate_limit: tenant.rate_limit.map(RateLimitDocument::of),
        retention_days: tenant.retention.map(Retention::as_days),
        defaults: PoliciesDocument::of(&tenant.defaults),
    })
}

pub(crate) fn read_tenant(id: TenantId, text: &str) -> Result<Tenant, Error> {
    let read = || {
        let document: TenantDocument = parse(text)?;
        let defaults = document.defaults.read()?;
        warn_of_an_unknown_zone(&id, &defaults);
        Ok(Tenant {
            id,
            share: document.share.map(ShareDocument::read).transpose()?.unwrap_or_default(),
            rate_limit: document.rate_limit.map(RateLimitDocument::read).transpose()?,
            retention: document.retention_days.map(Retention::days).transpose()?,
            defaults,
        })
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "tenant" })
}

/// All of an entry but its name.
pub(crate) fn catalogue_entry(entry: &Entry) -> String {
    let version = |(version, contract): &(Version, Contract)| VersionDocument {
        version: version.as_str().to_owned(),
        schema: contract.schema.clone(),
        example: contract.example.clone(),
    };
    write(&EntryDocument {
        description: entry.description.clone(),
        versions: entry.versions.iter().map(version).collect(),
        deprecated_at_ms: entry.deprecated_at.map(Timestamp::as_millis),
        is_priority: entry.is_priority,
    })
}

pub(crate) fn read_catalogue_entry(name: EventType, text: &str) -> Result<Entry, Error> {
    let version = |document: VersionDocument| {
        let contract = Contract { schema: document.schema, example: document.example };
        Ok((Version::parse(&document.version)?, contract))
    };
    let read = || {
        let document: EntryDocument = parse(text)?;
        Ok(Entry {
            name,
            description: document.description,
            versions: document.versions.into_iter().map(version).collect::<Result<_, Unreadable>>()?,
            deprecated_at: document.deprecated_at_ms.map(Timestamp::from_millis),
            is_priority: document.is_priority,
        })
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "catalogue entry" })
}

/// What a lane has counted, and the timeout that was learned for it.
pub(crate) fn lane(memory: &LaneMemory, timeout: &Adaptive) -> String {
    write(&LaneDocument::of(memory, timeout))
}

pub(crate) fn read_lane(text: &str) -> Result<(LaneMemory, Adaptive), Error> {
    let read = || parse::<LaneDocument>(text)?.read();
    read().map_err(|Unreadable| Error::Corrupt { what: "lane" })
}

/// By which rule an endpoint was disabled, as the audit log shows it.
pub(crate) fn disable_reason(reason: DisableReason) -> String {
    let (failures, failing_for) = match reason {
        DisableReason::Gone => (None, None),
        DisableReason::FailuresInARow { failures } => (Some(failures), None),
        DisableReason::FailingFor { failing_for, failures } => (Some(failures), Some(failing_for)),
    };
    write(&DisableReasonDocument {
        reason: reason.name().to_owned(),
        consecutive_failures: failures,
        failing_for_seconds: failing_for.map(|failing_for| failing_for.as_secs()),
    })
}

/// `None` for one that a later version knows.
pub(crate) fn read_disable_reason(text: &str) -> Option<DisableReason> {
    let document: DisableReasonDocument = parse(text).ok()?;
    let failing_for = document.failing_for_seconds.map(Duration::from_secs);
    let all = [
        Some(DisableReason::Gone),
        document.consecutive_failures.map(|failures| DisableReason::FailuresInARow { failures }),
        document
            .consecutive_failures
            .zip(failing_for)
            .map(|(failures, failing_for)| DisableReason::FailingFor { failing_for, failures }),
    ];
    all.into_iter().flatten().find(|reason| reason.name() == document.reason)
}

#[derive(Serialize, Deserialize)]
struct DisableReasonDocument {
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    consecutive_failures: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failing_for_seconds: Option<u64>,
}

/// All that an owner shows of a lane but its endpoint and the time.
pub(crate) fn shown_lane(lane: &LaneSnapshot) -> String {
    write(&ShownLaneDocument {
        lane: LaneDocument::of(&lane.memory, &lane.timeout),
        tenant_bucket_full_at_ns: lane.tenant_bucket.map(Bucket::as_nanos),
        retries_from_ms: lane.retries_from.map(Timestamp::as_millis),
        is_short_of_tokens: lane.is_short_of_tokens,
        has_slot: lane.has_slot,
        in_flight: lane.in_flight.iter().map(ToString::to_string).collect(),
        blocked: lane.blocked.clone(),
    })
}

pub(crate) fn read_shown_lane(endpoint: EndpointId, at: Timestamp, text: &str) -> Result<LaneSnapshot, Error> {
    let read = || {
        let document: ShownLaneDocument = parse(text)?;
        let (memory, timeout) = document.lane.read()?;
        Ok(LaneSnapshot {
            endpoint,
            at,
            memory,
            timeout,
            tenant_bucket: document.tenant_bucket_full_at_ns.map(Bucket::from_nanos),
            retries_from: document.retries_from_ms.map(Timestamp::from_millis),
            is_short_of_tokens: document.is_short_of_tokens,
            has_slot: document.has_slot,
            in_flight: document.in_flight.iter().map(|id| DeliveryId::parse(id)).collect::<Result<_, _>>()?,
            blocked: document.blocked,
        })
    };
    read().map_err(|Unreadable| Error::Corrupt { what: "lane" })
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct EndpointDocument {
    description: String,
    subscription: SubscriptionDocument,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_in_flight: Option<u32>,
    policies: PoliciesDocument,
    signing: SigningDocument,
    payload_format: PayloadFormatDocument,
    metadata: BTreeMap<String, String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct SubscriptionDocument {
    event_types: Vec<String>,
    disabled_event_types: Vec<String>,
    /// As its owner wrote it: text, so that not a byte of it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
}

impl SubscriptionDocument {
    fn of(subscription: &Subscription) -> SubscriptionDocument {
        SubscriptionDocument {
            event_types: patterns(&subscription.event_types),
            disabled_event_types: patterns(&subscription.disabled_event_types),
            filter: subscription.filter.as_ref().map(|filter| filter.source().to_owned()),
        }
    }

    fn read(self) -> Result<Subscription, Unreadable> {
        Ok(Subscription {
            event_types: read_patterns(&self.event_types)?,
            disabled_event_types: read_patterns(&self.disabled_event_types)?,
            filter: self.filter.as_deref().map(Filter::parse).transpose()?,
        })
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(tag = "style", rename_all = "snake_case")]
enum SigningDocument {
    #[default]
    Standard,
    StandardEd25519,
    TimestampHex {
        prefix: PrefixDocument,
        header_names: HeaderNamesDocument,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PrefixDocument {
    V1,
    Sha256,
}

#[derive(Serialize, Deserialize)]
struct HeaderNamesDocument {
    id: String,
    delivery: String,
    timestamp: String,
    signature: String,
}

impl SigningDocument {
    fn of(signing: &Signing) -> SigningDocument {
        match signing {
            Signing::Standard => SigningDocument::Standard,
            Signing::StandardEd25519 => SigningDocument::StandardEd25519,
            Signing::TimestampHex { prefix, header_names } => SigningDocument::TimestampHex {
                prefix: match prefix {
                    HexPrefix::V1 => PrefixDocument::V1,
                    HexPrefix::Sha256 => PrefixDocument::Sha256,
                },
                header_names: HeaderNamesDocument {
                    id: header_names.id().to_owned(),
                    delivery: header_names.delivery().to_owned(),
                    timestamp: header_names.timestamp().to_owned(),
                    signature: header_names.signature().to_owned(),
                },
            },
        }
    }

    fn read(self) -> Result<Signing, Unreadable> {
        match self {
            SigningDocument::Standard => Ok(Signing::Standard),
            SigningDocument::StandardEd25519 => Ok(Signing::StandardEd25519),
            SigningDocument::TimestampHex { prefix, header_names: names } => Ok(Signing::TimestampHex {
                prefix: match prefix {
                    PrefixDocument::V1 => HexPrefix::V1,
                    PrefixDocument::Sha256 => HexPrefix::Sha256,
                },
                header_names: HeaderNames::new(&names.id, &names.delivery, &names.timestamp, &names.signature)?,
            }),
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PayloadFormatDocument {
    #[default]
    Envelope,
    Data,
    CloudEvents,
}

impl PayloadFormatDocument {
    fn of(format: PayloadFormat) -> PayloadFormatDocument {
        match format {
            PayloadFormat::Envelope => PayloadFormatDocument::Envelope,
            PayloadFormat::Data => PayloadFormatDocument::Data,
            PayloadFormat::CloudEvents => PayloadFormatDocument::CloudEvents,
        }
    }

    fn read(self) -> PayloadFormat {
        match self {
            PayloadFormatDocument::Envelope => PayloadFormat::Envelope,
            PayloadFormatDocument::Data => PayloadFormat::Data,
            PayloadFormatDocument::CloudEvents => PayloadFormat::CloudEvents,
        }
    }
}

/// What is inherited is absent.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct PoliciesDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<TimeoutDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    circuit: Option<CircuitDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_schedule: Option<Liftable<Always, ScheduleDocument>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limit: Option<Liftable<Unlimited, RateLimitDocument>>,
}

impl PoliciesDocument {
    fn of(policies: &PolicyOverrides) -> PoliciesDocument {
        PoliciesDocument {
            retry: policies.retry.as_ref().map(RetryDocument::of),
            timeout: policies.timeout.map(TimeoutDocument::of),
            circuit: policies.circuit.as_ref().map(CircuitDocument::of),
            delivery_schedule: Liftable::of(&policies.delivery_schedule, Always::Always, ScheduleDocument::of),
            rate_limit: Liftable::of(&policies.rate_limit, Unlimited::Unlimited, |limit| RateLimitDocument::of(*limit)),
        }
    }

    fn read(self) -> Result<PolicyOverrides, Unreadable> {
        Ok(PolicyOverrides {
            retry: self.retry.map(RetryDocument::read).transpose()?,
            timeout: self.timeout.map(TimeoutDocument::read).transpose()?,
            circuit: self.circuit.map(CircuitDocument::read).transpose()?,
            delivery_schedule: Liftable::read(self.delivery_schedule, ScheduleDocument::read)?,
            rate_limit: Liftable::read(self.rate_limit, RateLimitDocument::read)?,
        })
    }
}

/// A word, or what is set. What is inherited is not there at all.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Liftable<W, T> {
    Lifted(W),
    Set(T),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Always {
    Always,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unlimited {
    Unlimited,
}

impl<W, T> Liftable<W, T> {
    fn of<S>(said: &Override<S>, word: W, set: impl FnOnce(&S) -> T) -> Option<Liftable<W, T>> {
        match said {
            Override::Inherit => None,
            Override::Lift => Some(Liftable::Lifted(word)),
            Override::Set(own) => Some(Liftable::Set(set(own))),
        }
    }

    fn read<S>(document: Option<Liftable<W, T>>, set: impl FnOnce(T) -> Result<S, Unreadable>) -> Result<Override<S>, Unreadable> {
        match document {
            None => Ok(Override::Inherit),
            Some(Liftable::Lifted(_)) => Ok(Override::Lift),
            Some(Liftable::Set(own)) => set(own).map(Override::Set),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RetryDocument {
    strategy: StrategyDocument,
    max_attempts: u32,
    #[serde(default)]
    also_statuses: BTreeSet<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StrategyDocument {
    Exponential {
        base_ms: u64,
        /// Text, because a reader of JSON may round a number by its last bit, and this one is compared.
        factor: String,
        cap_ms: u64,
        jitter: JitterDocument,
    },
    Schedule {
        delays_ms: Vec<u64>,
        jitter_percent: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum JitterDocument {
    None,
    Full,
    Equal,
    Proportional { percent: u32 },
    Decorrelated,
}

impl RetryDocument {
    fn of(policy: &RetryPolicy) -> RetryDocument {
        let strategy = match policy.strategy() {
            Strategy::Exponential { base, factor, cap, jitter } => StrategyDocument::Exponential {
                base_ms: millis(*base),
                factor: factor.to_string(),
                cap_ms: millis(*cap),
                jitter: match *jitter {
                    Jitter::None => JitterDocument::None,
                    Jitter::Full => JitterDocument::Full,
                    Jitter::Equal => JitterDocument::Equal,
                    Jitter::Proportional { percent } => JitterDocument::Proportional { percent },
                    Jitter::Decorrelated => JitterDocument::Decorrelated,
                },
            },
            Strategy::Schedule { delays, jitter_percent } => StrategyDocument::Schedule {
                delays_ms: delays.iter().copied().map(millis).collect(),
                jitter_percent: *jitter_percent,
            },
        };
        RetryDocument { strategy, max_attempts: policy.max_attempts_as_set(), also_statuses: policy.also_statuses().clone() }
    }

    fn read(self) -> Result<RetryPolicy, Unreadable> {
        let strategy = match self.strategy {
            StrategyDocument::Exponential { base_ms, factor, cap_ms, jitter } => Strategy::Exponential {
                base: Duration::from_millis(base_ms),
                factor: factor.parse()?,
                cap: Duration::from_millis(cap_ms),
                jitter: match jitter {
                    JitterDocument::None => Jitter::None,
                    JitterDocument::Full => Jitter::Full,
                    JitterDocument::Equal => Jitter::Equal,
                    JitterDocument::Proportional { percent } => Jitter::Proportional { percent },
                    JitterDocument::Decorrelated => Jitter::Decorrelated,
                },
            },
            StrategyDocument::Schedule { delays_ms, jitter_percent } => {
                Strategy::Schedule { delays: delays_ms.into_iter().map(Duration::from_millis).collect(), jitter_percent }
            }
        };
        Ok(RetryPolicy::new(strategy, self.max_attempts, self.also_statuses)?)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
enum TimeoutDocument {
    Adaptive,
    Manual { timeout_ms: u64 },
}

impl TimeoutDocument {
    fn of(mode: Mode) -> TimeoutDocument {
        match mode {
            Mode::Adaptive => TimeoutDocument::Adaptive,
            Mode::Manual(pinned) => TimeoutDocument::Manual { timeout_ms: millis(pinned.as_duration()) },
        }
    }

    fn read(self) -> Result<Mode, Unreadable> {
        match self {
            TimeoutDocument::Adaptive => Ok(Mode::Adaptive),
            TimeoutDocument::Manual { timeout_ms } => Ok(Mode::Manual(Pinned::new(Duration::from_millis(timeout_ms))?)),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct CircuitDocument {
    failure_threshold: u32,
    probe_interval_ms: u64,
}

impl CircuitDocument {
    fn of(policy: &CircuitPolicy) -> CircuitDocument {
        CircuitDocument { failure_threshold: policy.failure_threshold(), probe_interval_ms: millis(policy.probe_interval()) }
    }

    fn read(self) -> Result<CircuitPolicy, Unreadable> {
        Ok(CircuitPolicy::new(self.failure_threshold, Duration::from_millis(self.probe_interval_ms))?)
    }
}

#[derive(Serialize, Deserialize)]
struct RateLimitDocument {
    max_per_minute: u32,
    burst_capacity: u32,
}

impl RateLimitDocument {
    fn of(limit: RateLimit) -> RateLimitDocument {
        RateLimitDocument { max_per_minute: limit.max_per_minute(), burst_capacity: limit.burst_capacity() }
    }

    fn read(self) -> Result<RateLimit, Unreadable> {
        Ok(RateLimit::new(self.max_per_minute, self.burst_capacity)?)
    }
}

#[derive(Serialize, Deserialize)]
struct ScheduleDocument {
    timezone: String,
    #[serde(default)]
    windows: Vec<WindowDocument>,
    #[serde(default)]
    maintenance: Vec<MaintenanceDocument>,
    #[serde(default)]
    applies_to: Vec<String>,
    #[serde(default)]
    bypass_event_types: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct WindowDocument {
    start: String,
    end: String,
    /// Absent, every day.
    days: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct MaintenanceDocument {
    from_ms: i64,
    until_ms: i64,
}

impl ScheduleDocument {
    fn of(schedule: &QuietHours) -> ScheduleDocument {
        let window = |window: &Window| WindowDocument {
            start: window.start.to_string(),
            end: window.end.to_string(),
            days: Some(window.days.names().map(str::to_owned).collect()),
        };
        let maintenance =
            |window: &Maintenance| MaintenanceDocument { from_ms: window.from.as_millis(), until_ms: window.until.as_millis() };
        ScheduleDocument {
            timezone: schedule.zone().to_owned(),
            windows: schedule.windows().iter().map(window).collect(),
            maintenance: schedule.maintenance().iter().map(maintenance).collect(),
            applies_to: patterns(schedule.applies_to()),
            bypass_event_types: patterns(schedule.bypass_event_types()),
        }
    }

    /// A zone that our zone data does not know any more is kept: the core lets deliveries pass, and a later version of
    /// the data may know it again.
    fn read(self) -> Result<QuietHours, Unreadable> {
        let window = |window: WindowDocument| {
            Ok(Window {
                start: TimeOfDay::parse(&window.start)?,
                end: TimeOfDay::parse(&window.end)?,
                days: match window.days {
                    None => Days::ALL,
                    Some(names) => Days::parse(names.iter().map(String::as_str))?,
                },
            })
        };
        let maintenance = |window: MaintenanceDocument| Maintenance {
            from: Timestamp::from_millis(window.from_ms),
            until: Timestamp::from_millis(window.until_ms),
        };
        Ok(QuietHours::stored(
            &self.timezone,
            self.windows.into_iter().map(window).collect::<Result<_, Unreadable>>()?,
            self.maintenance.into_iter().map(maintenance).collect(),
            read_patterns(&self.applies_to)?,
            read_patterns(&self.bypass_event_types)?,
        )?)
    }
}

/// A zone can vanish from the zone data while nobody looks. Nothing is held back for that, but somebody should know.
fn warn_of_an_unknown_zone(whose: &dyn Display, policies: &PolicyOverrides) {
    match &policies.delivery_schedule {
        Override::Inherit | Override::Lift => {}
        Override::Set(schedule) => {
            if let Some(zone) = schedule.unknown_zone() {
                tracing::warn!(%whose, zone, "the time zone of its delivery schedule is not known any more; its windows are open");
            }
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct TenantDocument {
    share: Option<ShareDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limit: Option<RateLimitDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_days: Option<u32>,
    defaults: PoliciesDocument,
}

#[derive(Serialize, Deserialize)]
struct ShareDocument {
    weight: u32,
    /// Also written where it is inherited: versions from before there was a server-wide default need a number.
    max_in_flight: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    inherits_max_in_flight: bool,
}

impl ShareDocument {
    fn of(share: ShareOverrides) -> ShareDocument {
        ShareDocument {
            weight: share.weight(),
            max_in_flight: share.max_in_flight().unwrap_or_else(|| Share::default().max_in_flight()),
            inherits_max_in_flight: share.max_in_flight().is_none(),
        }
    }

    fn read(self) -> Result<ShareOverrides, Unreadable> {
        let max_in_flight = (!self.inherits_max_in_flight).then_some(self.max_in_flight);
        Ok(ShareOverrides::new(self.weight, max_in_flight)?)
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct EntryDocument {
    description: String,
    versions: Vec<VersionDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deprecated_at_ms: Option<i64>,
    is_priority: bool,
}

#[derive(Serialize, Deserialize)]
struct VersionDocument {
    version: String,
    /// Text within text, so that it stays what its author wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    example: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct LaneDocument {
    #[serde(default)]
    breaker: BreakerDocument,
    /// Never absent: no lost number may pass for a full bucket, which would grant a fresh burst.
    bucket_full_at_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failing: Option<FailingDocument>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    awaits_recovery: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_until_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow_start: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    learned_timeout: Option<LearnedDocument>,
    #[serde(default)]
    descent: DescentDocument,
}

impl LaneDocument {
    fn of(memory: &LaneMemory, timeout: &Adaptive) -> LaneDocument {
        LaneDocument {
            breaker: BreakerDocument::of(memory.breaker),
            bucket_full_at_ns: memory.bucket.as_nanos(),
            failing: memory.health.run().map(FailingDocument::of),
            awaits_recovery: memory.health.awaits_recovery(),
            held_until_ms: memory.held_until.map(Timestamp::as_millis),
            slow_start: memory.slow_start,
            learned_timeout: timeout.learned().map(LearnedDocument::of),
            descent: DescentDocument::of(timeout.descent()),
        }
    }

    fn read(self) -> Result<(LaneMemory, Adaptive), Unreadable> {
        let memory = LaneMemory {
            breaker: self.breaker.read(),
            bucket: Bucket::from_nanos(self.bucket_full_at_ns),
            health: Health::stored(self.failing.map(FailingDocument::read), self.awaits_recovery),
            held_until: self.held_until_ms.map(Timestamp::from_millis),
            slow_start: self.slow_start,
        };
        let timeout = Adaptive::stored(self.learned_timeout.map(LearnedDocument::read), self.descent.read());
        Ok((memory, timeout.ok_or(Unreadable)?))
    }
}

#[derive(Serialize, Deserialize)]
struct ShownLaneDocument {
    lane: LaneDocument,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant_bucket_full_at_ns: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries_from_ms: Option<i64>,
    #[serde(default)]
    is_short_of_tokens: bool,
    has_slot: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    in_flight: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blocked: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum BreakerDocument {
    Closed { failures: u32 },
    Open { since_ms: i64, probe_at_ms: i64, failures: u32 },
    HalfOpen { since_ms: i64, probe_started_ms: i64, failures: u32 },
}

impl Default for BreakerDocument {
    fn default() -> BreakerDocument {
        BreakerDocument::of(Breaker::default())
    }
}

impl BreakerDocument {
    fn of(breaker: Breaker) -> BreakerDocument {
        match breaker {
            Breaker::Closed { failures } => BreakerDocument::Closed { failures },
            Breaker::Open { since, probe_at, failures } => {
                BreakerDocument::Open { since_ms: since.as_millis(), probe_at_ms: probe_at.as_millis(), failures }
            }
            Breaker::HalfOpen { since, probe_started, failures } => {
                BreakerDocument::HalfOpen { since_ms: since.as_millis(), probe_started_ms: probe_started.as_millis(), failures }
            }
        }
    }

    fn read(self) -> Breaker {
        let at = Timestamp::from_millis;
        match self {
            BreakerDocument::Closed { failures } => Breaker::Closed { failures },
            BreakerDocument::Open { since_ms, probe_at_ms, failures } => {
                Breaker::Open { since: at(since_ms), probe_at: at(probe_at_ms), failures }
            }
            BreakerDocument::HalfOpen { since_ms, probe_started_ms, failures } => {
                Breaker::HalfOpen { since: at(since_ms), probe_started: at(probe_started_ms), failures }
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct FailingDocument {
    since_ms: i64,
    last_ms: i64,
    failing_for_ms: u64,
    failures: u32,
    #[serde(default)]
    refusals: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    told: Option<ReportedStageDocument>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReportedStageDocument {
    Refusing,
    Half,
    NineTenths,
    GivenUp,
}

impl FailingDocument {
    fn of(run: FailingRun) -> FailingDocument {
        FailingDocument {
            since_ms: run.since.as_millis(),
            last_ms: run.last.as_millis(),
            failing_for_ms: millis(run.failing_for),
            failures: run.failures,
            refusals: run.refusals,
            told: run.told.map(|told| match told {
                ReportedStage::Warning(Warning::Refusing) => ReportedStageDocument::Refusing,
                ReportedStage::Warning(Warning::Half) => ReportedStageDocument::Half,
                ReportedStage::Warning(Warning::NineTenths) => ReportedStageDocument::NineTenths,
                ReportedStage::GivenUp => ReportedStageDocument::GivenUp,
            }),
        }
    }

    fn read(self) -> FailingRun {
        FailingRun {
            since: Timestamp::from_millis(self.since_ms),
            last: Timestamp::from_millis(self.last_ms),
            failing_for: Duration::from_millis(self.failing_for_ms),
            failures: self.failures,
            refusals: self.refusals,
            told: self.told.map(|told| match told {
                ReportedStageDocument::Refusing => ReportedStage::Warning(Warning::Refusing),
                ReportedStageDocument::Half => ReportedStage::Warning(Warning::Half),
                ReportedStageDocument::NineTenths => ReportedStage::Warning(Warning::NineTenths),
                ReportedStageDocument::GivenUp => ReportedStage::GivenUp,
            }),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct LearnedDocument {
    timeout_ms: u64,
    p50_ms: u64,
    p95_ms: u64,
    p99_ms: u64,
    sample_count: u64,
    computed_at_ms: i64,
}

impl LearnedDocument {
    fn of(learned: &Learned) -> LearnedDocument {
        LearnedDocument {
            timeout_ms: millis(learned.timeout),
            p50_ms: millis(learned.p50),
            p95_ms: millis(learned.p95),
            p99_ms: millis(learned.p99),
            sample_count: learned.sample_count,
            computed_at_ms: learned.computed_at.as_millis(),
        }
    }

    fn read(self) -> Learned {
        Learned {
            timeout: Duration::from_millis(self.timeout_ms),
            p50: Duration::from_millis(self.p50_ms),
            p95: Duration::from_millis(self.p95_ms),
            p99: Duration::from_millis(self.p99_ms),
            sample_count: self.sample_count,
            computed_at: Timestamp::from_millis(self.computed_at_ms),
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum DescentDocument {
    #[default]
    None,
    Shortened {
        since_ms: i64,
        before_ms: u64,
        attempts_before: u64,
        timeouts_before: u64,
        half_way: bool,
    },
    Undone {
        since_ms: i64,
    },
}

impl DescentDocument {
    fn of(descent: Descent) -> DescentDocument {
        match descent {
            Descent::None => DescentDocument::None,
            Descent::Shortened { since, before, tally_before, half_way } => DescentDocument::Shortened {
                since_ms: since.as_millis(),
                before_ms: millis(before),
                attempts_before: tally_before.attempts,
                timeouts_before: tally_before.timeouts,
                half_way,
            },
            Descent::Undone { since } => DescentDocument::Undone { since_ms: since.as_millis() },
        }
    }

    fn read(self) -> Descent {
        match self {
            DescentDocument::None => Descent::None,
            DescentDocument::Shortened { since_ms, before_ms, attempts_before, timeouts_before, half_way } => Descent::Shortened {
                since: Timestamp::from_millis(since_ms),
                before: Duration::from_millis(before_ms),
                tally_before: Tally { attempts: attempts_before, timeouts: timeouts_before },
                half_way,
            },
            DescentDocument::Undone { since_ms } => Descent::Undone { since: Timestamp::from_millis(since_ms) },
        }
    }
}

fn write<T: Serialize>(document: &T) -> String {
    serde_json::to_string(document).expect("a document has texts for names and can always be written")
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Unreadable> {
    // serde would also take `[]`, as a document in which nothing is said.
    if !text.trim_start().starts_with('{') {
        return Err(Unreadable);
    }
    Ok(serde_json::from_str(text)?)
}

/// Why is not told: the reason might quote a credential.
struct Unreadable;

impl<E: std::error::Error> From<E> for Unreadable {
    fn from(_: E) -> Unreadable {
        Unreadable
    }
}

fn patterns(patterns: &TypePatterns) -> Vec<String> {
    patterns.iter().map(ToString::to_string).collect()
}

fn read_patterns(texts: &[String]) -> Result<TypePatterns, Unreadable> {
    Ok(TypePatterns::parse(texts.iter().map(String::as_str))?)
}

fn owned<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use super::*;
    use posthaste_core::quiet_hours::Phase;
    use posthaste_core::retry;
    use proptest::prelude::*;
    // Both globs have one.
    use proptest::strategy::Strategy;
    use serde_json::Value;

    const ENDPOINT: &str = r#"{
        "description": "orders\nof the shop",
        "subscription": {"event_types": ["invoice.*", "order.paid"], "disabled_event_types": ["invoice.draft"],
                         "filter": "{ \"data.amount\": {\"$gte\": 1e3} }"},
        "max_in_flight": 5,
        "policies": {
            "retry": {"strategy": {"type": "exponential", "base_ms": 500, "factor": "2.5", "cap_ms": 60000,
                                   "jitter": {"type": "proportional", "percent": 10}},
                      "max_attempts": 9, "also_statuses": [404, 409]},
            "timeout": {"mode": "manual", "timeout_ms": 2500},
            "circuit": {"failure_threshold": 3, "probe_interval_ms": 30000},
            "delivery_schedule": {"timezone": "Europe/Berlin", "windows": [{"start": "22:00", "end": "06:00", "days": ["sat", "sun"]}],
                                  "maintenance": [{"from_ms": 1000, "until_ms": 2000}],
                                  "applies_to": ["invoice.*"], "bypass_event_types": ["order.paid"]},
            "rate_limit": "unlimited"},
        "signing": {"style": "timestamp_hex", "prefix": "sha256",
                    "header_names": {"id": "x-id", "delivery": "x-delivery", "timestamp": "x-time", "signature": "x-sign"}},
        "payload_format": "cloud_events",
        "metadata": {"team": "billing"}}"#;

    const TENANT: &str = r#"{
        "share": {"weight": 3, "max_in_flight": 100},
        "rate_limit": {"max_per_minute": 600, "burst_capacity": 50},
        "retention_days": 90,
        "defaults": {"retry": {"strategy": {"type": "schedule", "delays_ms": [1000, 60000], "jitter_percent": 20},
                               "max_attempts": 3, "also_statuses": []},
                     "timeout": {"mode": "adaptive"}, "delivery_schedule": "always"}}"#;

    const ENTRY: &str = r#"{
        "description": "An invoice was paid.",
        "versions": [{"version": "v1"}, {"version": "v2", "schema": "{\"type\": \"object\"}", "example": "{}"}],
        "deprecated_at_ms": 1800000000000,
        "is_priority": true}"#;

    const LANE: &str = r#"{
        "breaker": {"state": "half_open", "since_ms": 1, "probe_started_ms": 2, "failures": 7},
        "bucket_full_at_ns": 1800000000000000001,
        "failing": {"since_ms": 3, "last_ms": 4, "failing_for_ms": 5, "failures": 6, "refusals": 2, "told": "nine_tenths"},
        "held_until_ms": 8,
        "slow_start": 9,
        "learned_timeout": {"timeout_ms": 7500, "p50_ms": 10, "p95_ms": 11, "p99_ms": 12, "sample_count": 13, "computed_at_ms": 14},
        "descent": {"state": "shortened", "since_ms": 15, "before_ms": 10000, "attempts_before": 16, "timeouts_before": 17,
                    "half_way": true}}"#;

    fn columns() -> EndpointColumns {
        EndpointColumns {
            id: EndpointId::from_bytes([7; 16]),
            tenant: TenantId::parse("acme").unwrap(),
            uid: Some(EndpointUid::parse("shop").unwrap()),
            url: "https://example.com/hooks".to_owned(),
            status: Status::Paused { until: Some(Timestamp::from_millis(99)) },
            headers: Headers::new([("authorization", "Bearer abc")], &Signing::Standard).unwrap(),
            created_at: Timestamp::from_millis(1),
            updated_at: Timestamp::from_millis(2),
        }
    }

    fn name() -> EventType {
        EventType::parse("invoice.paid").unwrap()
    }

    fn acme() -> TenantId {
        TenantId::parse("acme").unwrap()
    }

    /// Reads a document of some kind and writes it again, or says what is corrupt.
    type Again = fn(&str) -> Result<String, Error>;

    const KINDS: [(&str, &str, Again); 4] = [
        ("endpoint", ENDPOINT, |text| read_endpoint(text, columns()).map(|read| endpoint(&read))),
        ("tenant", TENANT, |text| read_tenant(acme(), text).map(|read| tenant(&read))),
        ("catalogue entry", ENTRY, |text| read_catalogue_entry(name(), text).map(|read| catalogue_entry(&read))),
        ("lane", LANE, |text| read_lane(text).map(|(memory, timeout)| lane(&memory, &timeout))),
    ];

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    /// The documents above are what is in people's databases: a change here is a change of the format.
    #[test]
    fn what_is_stored_today_reads_and_is_written_the_same() {
        for (kind, stored, again) in KINDS {
            assert_eq!(json(&again(stored).unwrap()), json(stored), "{kind}");
        }
    }

    #[test]
    fn members_that_a_newer_version_wrote_are_passed_over() {
        fn add_everywhere(value: &mut Value) {
            match value {
                Value::Object(members) => {
                    members.values_mut().for_each(add_everywhere);
                    members.insert("of_the_future".to_owned(), serde_json::json!({"nested": [1.5, null]}));
                }
                Value::Array(items) => items.iter_mut().for_each(add_everywhere),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        for (kind, stored, again) in KINDS {
            let mut newer = json(stored);
            if kind == "endpoint" {
                // Its names are its owner's, so that any is known.
                newer.as_object_mut().unwrap().remove("metadata");
            }
            let expected = again(&newer.to_string()).unwrap();
            add_everywhere(&mut newer);
            assert_eq!(again(&newer.to_string()).unwrap(), expected, "{kind}");
        }
    }

    #[test]
    fn what_an_older_version_did_not_write_is_as_if_nobody_had_said_anything() {
        let read = read_endpoint("{}", columns()).unwrap();
        let EndpointColumns { id, tenant, uid, url, status, headers, created_at, updated_at } = columns();
        let plain = Endpoint {
            id,
            tenant,
            uid,
            url,
            description: Description::parse("").unwrap(),
            status,
            subscription: Subscription::default(),
            max_in_flight: None,
            policies: PolicyOverrides::default(),
            signing: Signing::default(),
            payload_format: PayloadFormat::default(),
            headers,
            metadata: Metadata::default(),
            created_at,
            updated_at,
        };
        assert_eq!(read, plain);
        assert_eq!(read_tenant(acme(), "{}").unwrap(), Tenant::new(acme()));
        let entry = Entry { name: name(), description: String::new(), versions: vec![], deprecated_at: None, is_priority: false };
        assert_eq!(read_catalogue_entry(name(), "{}").unwrap(), entry);
        let full = format!(r#"{{"bucket_full_at_ns": {}}}"#, i64::MIN);
        assert_eq!(read_lane(&full).unwrap(), (LaneMemory::new(), Adaptive::default()));
        assert!(read_lane("{}").is_err(), "a bucket of which nothing is known is not full");
        let schedule =
            r#"{"policies": {"delivery_schedule": {"timezone": "UTC", "windows": [{"start": "22:00", "end": "06:00"}]}}}"#;
        let Override::Set(schedule) = read_endpoint(schedule, columns()).unwrap().policies.delivery_schedule else { panic!() };
        assert_eq!(schedule.windows()[0].days, Days::ALL);
    }

    /// C1: nothing is held back for it, and the schedule is there again when the zone is.
    #[test]
    fn a_zone_that_is_not_known_any_more_lets_everything_pass_and_is_kept() {
        let stored = ENDPOINT.replace("Europe/Berlin", "Mars/Olympus");
        let read = read_endpoint(&stored, columns()).unwrap();
        let Override::Set(schedule) = &read.policies.delivery_schedule else { panic!("it was set") };
        assert_eq!(schedule.unknown_zone(), Some("Mars/Olympus"));
        let after_maintenance = Timestamp::from_millis(2000);
        assert_eq!(schedule.at(after_maintenance), Phase::Open { until: None });
        assert_eq!(json(&endpoint(&read)), json(&stored));
    }

    #[test]
    fn damage_is_corrupt_and_never_guessed() {
        let check = |kind: &str, again: Again, text: &str| match again(text) {
            Err(Error::Corrupt { what }) => assert_eq!(what, kind),
            other => panic!("{kind} {text}: {other:?}"),
        };
        for (kind, stored, again) in KINDS {
            for text in ["", "null", "[]", "7", "\"text\"", &stored[..stored.len() - 1], &format!("{stored} x")] {
                check(kind, again, text);
            }
        }
        for (stored, good, bad) in [
            (ENDPOINT, r#""orders\nof the shop""#, r#""\u0000""#),
            (ENDPOINT, "order.paid\"], \"disabled", "order..paid\"], \"disabled"),
            (ENDPOINT, "$gte", "$nearly"),
            (ENDPOINT, r#""max_in_flight": 5"#, r#""max_in_flight": 0"#),
            (ENDPOINT, r#""base_ms": 500"#, r#""base_ms": 0"#),
            (ENDPOINT, r#""base_ms": 500, "#, ""),
            (ENDPOINT, r#""base_ms": 500"#, r#""base_ms": -1"#),
            (ENDPOINT, r#""2.5""#, r#""NaN""#),
            (ENDPOINT, r#""2.5""#, r#""two""#),
            (ENDPOINT, r#""proportional""#, r#""sideways""#),
            (ENDPOINT, r#""percent": 10"#, r#""percent": 101"#),
            (ENDPOINT, r#""max_attempts": 9"#, r#""max_attempts": 51"#),
            (ENDPOINT, "[404, 409]", "[200]"),
            (ENDPOINT, r#""timeout_ms": 2500"#, r#""timeout_ms": 250"#),
            (ENDPOINT, r#""probe_interval_ms": 30000"#, r#""probe_interval_ms": 3"#),
            (ENDPOINT, "22:00", "24:00"),
            (ENDPOINT, "22:00", "06:00"),
            (ENDPOINT, r#"["sat", "sun"]"#, "[]"),
            (ENDPOINT, r#""until_ms": 2000"#, r#""until_ms": 1000"#),
            (ENDPOINT, r#""unlimited""#, r#""always""#),
            (ENDPOINT, r#""unlimited""#, r#"{"max_per_minute": 0, "burst_capacity": 1}"#),
            (ENDPOINT, r#""timestamp_hex""#, r#""invisible_ink""#),
            (ENDPOINT, r#""sha256""#, r#""sha1""#),
            (ENDPOINT, r#""x-id""#, r#""host""#),
            (ENDPOINT, r#""cloud_events""#, r#""carrier_pigeon""#),
            (ENDPOINT, r#""billing""#, "7"),
            (TENANT, r#""weight": 3"#, r#""weight": 0"#),
            (TENANT, r#""burst_capacity": 50"#, r#""burst_capacity": 0"#),
            (TENANT, "90", "366"),
            (TENANT, r#""always""#, r#""unlimited""#),
            (TENANT, r#""jitter_percent": 20"#, r#""jitter_percent": 200"#),
            (ENTRY, r#""v1""#, r#""v 1""#),
            (ENTRY, r#""version": "v1""#, ""),
            (ENTRY, "true", "1"),
            (LANE, "half_open", "ajar"),
            (LANE, "nine_tenths", "some"),
            (LANE, "1800000000000000001", "1e99"),
            (LANE, r#""slow_start": 9"#, r#""slow_start": -9"#),
            (LANE, "shortened", "stretched"),
            (LANE, "learned_timeout", "forgotten_timeout"),
        ] {
            let (kind, _, again) = KINDS.into_iter().find(|(_, document, _)| *document == stored).unwrap();
            assert!(stored.contains(good), "{good} is in the {kind}");
            check(kind, again, &stored.replacen(good, bad, 1));
        }
        for text in ["", "[]", r#"{"x-a": 7}"#, r#"{"host": "x"}"#, r#"{"x-a": "a\nb"}"#, r#"{"X-A": "1", "x-a": "2"}"#] {
            assert!(matches!(read_headers(text, &Signing::Standard), Err(Error::Corrupt { what: "headers" })), "{text}");
        }
    }

    #[test]
    fn headers_are_held_to_the_signing_beside_them() {
        let signing = read_endpoint(ENDPOINT, columns()).unwrap().signing;
        assert!(read_headers(r#"{"x-sign": "forged"}"#, &Signing::Standard).is_ok());
        assert!(read_headers(r#"{"x-sign": "forged"}"#, &signing).is_err());
    }

    proptest! {
        #[test]
        fn an_endpoint_comes_back_as_it_was(written in an_endpoint()) {
            let columns = EndpointColumns {
                id: written.id,
                tenant: written.tenant.clone(),
                uid: written.uid.clone(),
                url: written.url.clone(),
                status: written.status,
                headers: written.headers.clone(),
                created_at: written.created_at,
                updated_at: written.updated_at,
            };
            let text = endpoint(&written);
            prop_assert_eq!(read_endpoint(&text, columns).unwrap(), written);
        }

        #[test]
        fn headers_come_back_as_they_were(entries in prop::collection::btree_map("x-[a-z0-9!#$%&'*+.^_`|~-]{1,20}", "([!-~]([ -~]{0,30}[!-~])?)?", 0..10)) {
            let written = Headers::new(entries.iter().map(|(name, value)| (name.as_str(), value.as_str())), &Signing::Standard).unwrap();
            let text = headers(&written);
            prop_assert_eq!(read_headers(&text, &Signing::Standard).unwrap(), written);
        }

        #[test]
        fn a_tenant_comes_back_as_it_was(
            share in (1u32..=1000, prop::option::of(1u32..=100_000)),
            rate_limit in prop::option::of(a_rate_limit()),
            days in prop::option::of(1u32..=365),
            defaults in policies(),
        ) {
            let share = ShareOverrides::new(share.0, share.1).unwrap();
            let retention = days.map(|days| Retention::days(days).unwrap());
            let written = Tenant { id: acme(), share, rate_limit, retention, defaults };
            prop_assert_eq!(read_tenant(acme(), &tenant(&written)).unwrap(), written);
        }

        #[test]
        fn a_catalogue_entry_comes_back_as_it_was(
            description in any::<String>(),
            versions in prop::collection::vec(("[!-~]{1,64}", prop::option::of(any::<String>()), prop::option::of(any::<String>())), 0..5),
            deprecated_at in prop::option::of(a_moment()),
            is_priority in any::<bool>(),
        ) {
            let version = |(version, schema, example): (String, _, _)| (Version::parse(&version).unwrap(), Contract { schema, example });
            let versions = versions.into_iter().map(version).collect();
            let written = Entry { name: name(), description, versions, deprecated_at, is_priority };
            prop_assert_eq!(read_catalogue_entry(name(), &catalogue_entry(&written)).unwrap(), written);
        }

        #[test]
        fn a_lane_comes_back_as_it_was(memory in a_memory(), timeout in an_adaptive_timeout()) {
            prop_assert_eq!(read_lane(&lane(&memory, &timeout)).unwrap(), (memory, timeout));
        }

        #[test]
        fn no_text_makes_a_reader_panic(kind in 0usize..4, cut in any::<prop::sample::Index>(), replaced in any::<char>()) {
            let (_, stored, again) = KINDS[kind];
            let at = cut.index(stored.len());
            let damaged = format!("{}{replaced}{}", &stored[..at], &stored[at + 1..]);
            _ = again(&damaged);
        }
    }

    fn a_moment() -> impl Strategy<Value = Timestamp> {
        prop_oneof![
            Just(Timestamp::MIN),
            Just(Timestamp::MAX),
            (Timestamp::MIN.as_millis()..=Timestamp::MAX.as_millis()).prop_map(Timestamp::from_millis),
        ]
    }

    fn a_duration(max: Duration) -> impl Strategy<Value = Duration> {
        (0..=millis(max)).prop_map(Duration::from_millis)
    }

    fn a_rate_limit() -> impl Strategy<Value = RateLimit> {
        (1u32..=1_000_000, 1u32..=1_000_000).prop_map(|(rate, burst)| RateLimit::new(rate, burst).unwrap())
    }

    fn type_patterns(first_segment: &'static str) -> impl Strategy<Value = TypePatterns> {
        let pattern = prop_oneof!["[a-z_-]{1,9}", "[A-Z0-9]{1,9}", Just("*".to_owned())];
        prop::collection::vec(pattern, 0..5).prop_map(move |ends| {
            let texts: Vec<String> = ends.into_iter().map(|end| format!("{first_segment}.{end}")).collect();
            TypePatterns::parse(texts.iter().map(String::as_str)).unwrap()
        })
    }

    fn a_subscription() -> impl Strategy<Value = Subscription> {
        let filter = prop_oneof![
            Just(None),
            any::<i64>().prop_map(|amount| Some(format!(r#"{{ "data.amount" : {{"$gte": {amount}e2}} }}"#))),
            "[a-z äöü]{0,20}".prop_map(|label| Some(format!(r#"{{"$or": [{{"labels": {{"$in": ["{label}"]}}}}]}}"#))),
        ];
        (prop_oneof![Just(TypePatterns::parse(["*"]).unwrap()), type_patterns("a")], type_patterns("b"), filter).prop_map(
            |(event_types, disabled_event_types, filter)| Subscription {
                event_types,
                disabled_event_types,
                filter: filter.map(|source| Filter::parse(&source).unwrap()),
            },
        )
    }

    fn a_retry_policy() -> impl Strategy<Value = RetryPolicy> {
        let jitter = prop_oneof![
            Just(Jitter::None),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            (0u32..=100).prop_map(|percent| Jitter::Proportional { percent }),
            Just(Jitter::Decorrelated),
        ];
        let exponential = (1u64..=86_400_000, 1.0f64..=10.0, 0u64..=86_400_000, jitter).prop_map(|(base, factor, more, jitter)| {
            let (base, cap) = (Duration::from_millis(base), Duration::from_millis(base + more));
            retry::Strategy::Exponential { base, factor, cap, jitter }
        });
        let schedule = (prop::collection::vec(a_duration(retry::DELAY_MAX), 0..=50), 0u32..=100)
            .prop_map(|(delays, jitter_percent)| retry::Strategy::Schedule { delays, jitter_percent });
        (prop_oneof![exponential, schedule], 1u32..=50, prop::collection::btree_set(400u16..=499, 0..5))
            .prop_map(|(strategy, max_attempts, also_statuses)| RetryPolicy::new(strategy, max_attempts, also_statuses).unwrap())
    }

    fn a_schedule() -> impl Strategy<Value = QuietHours> {
        let window = (0u32..24, 0u32..60, 1u32..24, 1u8..128).prop_map(|(hour, minute, hours, days)| Window {
            start: TimeOfDay::parse(&format!("{hour:02}:{minute:02}")).unwrap(),
            end: TimeOfDay::parse(&format!("{:02}:{minute:02}", (hour + hours) % 24)).unwrap(),
            days: Days::parse((0..7).filter(|day| days >> day & 1 == 1).map(|day| Days::NAMES[day])).unwrap(),
        });
        let maintenance = (0i64..1_000_000_000_000, 1i64..1_000_000_000).prop_map(|(from, length)| Maintenance {
            from: Timestamp::from_millis(from),
            until: Timestamp::from_millis(from + length),
        });
        let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Chicago", "Mars/Olympus"]);
        (
            zone,
            prop::collection::vec(window, 0..3),
            prop::collection::vec(maintenance, 0..3),
            type_patterns("a"),
            type_patterns("b"),
        )
            .prop_filter_map("open at some time", |(zone, windows, maintenance, applies_to, bypass)| {
                QuietHours::stored(zone, windows, maintenance, applies_to, bypass).ok()
            })
    }

    fn an_override<T: Clone + std::fmt::Debug + 'static>(
        set: impl Strategy<Value = T> + 'static,
    ) -> impl Strategy<Value = Override<T>> {
        prop_oneof![Just(Override::Inherit), Just(Override::Lift), set.prop_map(Override::Set)]
    }

    fn policies() -> impl Strategy<Value = PolicyOverrides> {
        let pinned = (1000u64..=60_000).prop_map(|timeout| Mode::Manual(Pinned::new(Duration::from_millis(timeout)).unwrap()));
        let circuit = (1u32..=1000, 1000u64..=86_400_000)
            .prop_map(|(threshold, interval)| CircuitPolicy::new(threshold, Duration::from_millis(interval)).unwrap());
        (
            prop::option::of(a_retry_policy()),
            prop::option::of(prop_oneof![Just(Mode::Adaptive), pinned]),
            prop::option::of(circuit),
            an_override(a_schedule()),
            an_override(a_rate_limit()),
        )
            .prop_map(|(retry, timeout, circuit, delivery_schedule, rate_limit)| PolicyOverrides {
                retry,
                timeout,
                circuit,
                delivery_schedule,
                rate_limit,
            })
    }

    fn a_signing() -> impl Strategy<Value = Signing> {
        let names = "[a-z]{1,9}".prop_map(|word| {
            let name = |part: &str| format!("X-{word}-{part}");
            HeaderNames::new(&name("id"), &name("delivery"), &name("timestamp"), &name("signature")).unwrap()
        });
        prop_oneof![
            Just(Signing::Standard),
            Just(Signing::StandardEd25519),
            (prop::sample::select(vec![HexPrefix::V1, HexPrefix::Sha256]), names)
                .prop_map(|(prefix, header_names)| Signing::TimestampHex { prefix, header_names }),
        ]
    }

    fn an_endpoint() -> impl Strategy<Value = Endpoint> {
        let formats = vec![PayloadFormat::Envelope, PayloadFormat::Data, PayloadFormat::CloudEvents];
        (
            "[^\\p{Cc}]{0,20}\n?",
            a_subscription(),
            prop::option::of(1u32..=1000),
            policies(),
            a_signing(),
            prop::sample::select(formats),
            prop::collection::btree_map(any::<String>(), any::<String>(), 0..5),
        )
            .prop_map(|(description, subscription, max_in_flight, policies, signing, payload_format, metadata)| {
                let EndpointColumns { id, tenant, uid, url, status, headers, created_at, updated_at } = columns();
                Endpoint {
                    id,
                    tenant,
                    uid,
                    url,
                    description: Description::parse(&description).unwrap(),
                    status,
                    subscription,
                    max_in_flight: max_in_flight.map(|count| MaxInFlight::new(count).unwrap()),
                    policies,
                    signing,
                    payload_format,
                    headers,
                    metadata: Metadata::new(metadata).unwrap(),
                    created_at,
                    updated_at,
                }
            })
    }

    fn a_memory() -> impl Strategy<Value = LaneMemory> {
        let breaker = prop_oneof![
            any::<u32>().prop_map(|failures| Breaker::Closed { failures }),
            (a_moment(), a_moment(), any::<u32>()).prop_map(|(since, probe_at, failures)| Breaker::Open {
                since,
                probe_at,
                failures
            }),
            (a_moment(), a_moment(), any::<u32>()).prop_map(|(since, probe_started, failures)| Breaker::HalfOpen {
                since,
                probe_started,
                failures
            }),
        ];
        let bucket =
            prop_oneof![Just(Bucket::full()), Just(Bucket::from_nanos(i64::MAX)), any::<i64>().prop_map(Bucket::from_nanos)];
        let warned = |warning| Some(ReportedStage::Warning(warning));
        let told =
            vec![None, warned(Warning::Refusing), warned(Warning::Half), warned(Warning::NineTenths), Some(ReportedStage::GivenUp)];
        let long = a_duration(Duration::from_hours(10_000));
        let run = (a_moment(), a_moment(), long, any::<[u32; 2]>(), prop::sample::select(told)).prop_map(
            |(since, last, failing_for, [failures, refusals], told)| FailingRun {
                since,
                last,
                failing_for,
                failures,
                refusals,
                told,
            },
        );
        let health = (prop::option::of(run), any::<bool>()).prop_map(|(run, is_awaited)| Health::stored(run, is_awaited));
        (breaker, bucket, health, prop::option::of(a_moment()), prop::option::of(any::<u32>())).prop_map(
            |(breaker, bucket, health, held_until, slow_start)| LaneMemory { breaker, bucket, health, held_until, slow_start },
        )
    }

    fn an_adaptive_timeout() -> impl Strategy<Value = Adaptive> {
        let short = || a_duration(Duration::from_mins(1));
        let learned = (short(), short(), short(), short(), any::<u64>(), a_moment()).prop_map(
            |(timeout, p50, p95, p99, sample_count, computed_at)| Learned { timeout, p50, p95, p99, sample_count, computed_at },
        );
        let descent = prop_oneof![
            Just(Descent::None),
            (a_moment(), short(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
                |(since, before, attempts, timeouts, half_way)| {
                    Descent::Shortened { since, before, tally_before: Tally { attempts, timeouts }, half_way }
                }
            ),
            a_moment().prop_map(|since| Descent::Undone { since }),
        ];
        (prop::option::of(learned), descent)
            .prop_filter_map("a shortening was learned", |(learned, descent)| Adaptive::stored(learned, descent))
    }
}
