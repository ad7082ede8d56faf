//! The policies of endpoints and tenants, as requests say them and as answers show them.
//!
//! A policy that is given replaces that policy whole: what it leaves out has the default of the policy, not what was there
//! before. The short forms (`quiet_start`, `timeout_ms` alone) say the same as the long ones.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use posthaste_core::bucket::{RateLimit, RateLimitError};
use posthaste_core::circuit::{Breaker, CircuitPolicy, CircuitPolicyError};
use posthaste_core::endpoint::{Override, Policies, PolicyOverrides};
use posthaste_core::event::{TypePattern, TypePatterns};
use posthaste_core::quiet_hours::{Days, Maintenance, QuietHours, QuietHoursError, TimeOfDay, WINDOWS_MAX, Window};
use posthaste_core::retry::{ATTEMPTS_MAX, AlsoStatus, Jitter, RetryPolicy, RetryPolicyError, Strategy};
use posthaste_core::time::{Timestamp, millis};
use posthaste_core::timeout::{Adaptive, Method, Mode, Pinned, TimeoutRules};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::patch::{Patch, check_read_only};
use crate::problem::Problem;

/// A policy, or the word that lifts an inherited one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Liftable<T> {
    Lift,
    Set(T),
}

pub(crate) trait HasLiftWord {
    const LIFT: &'static str;
}

impl HasLiftWord for RateLimitBody {
    const LIFT: &'static str = "unlimited";
}

impl HasLiftWord for ScheduleBody {
    const LIFT: &'static str = "always";
}

impl<'de, T: HasLiftWord + Deserialize<'de>> Deserialize<'de> for Liftable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Liftable<T>, D::Error> {
        deserializer.deserialize_any(LiftableVisitor(PhantomData))
    }
}

struct LiftableVisitor<T>(PhantomData<T>);

impl<'de, T: HasLiftWord + Deserialize<'de>> Visitor<'de> for LiftableVisitor<T> {
    type Value = Liftable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object or \"{}\"", T::LIFT)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Liftable<T>, E> {
        if word == T::LIFT { Ok(Liftable::Lift) } else { Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)) }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Liftable<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Liftable::Set)
    }
}

/// What is set, or nothing, or the word.
pub(crate) fn overriding<T, U>(
    given: Patch<Liftable<T>>,
    present: Override<U>,
    read: impl FnOnce(T) -> Result<U, Problem>,
) -> Result<Override<U>, Problem> {
    Ok(match given {
        Patch::Absent => present,
        Patch::Null => Override::Inherit,
        Patch::Is(Liftable::Lift) => Override::Lift,
        Patch::Is(Liftable::Set(body)) => Override::Set(read(body)?),
    })
}

// Rate limit.

/// `max_per_minute` sustained, `burst_capacity` at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RateLimit)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimitBody {
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_per_minute: u32,
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst_capacity: u32,
}

impl RateLimitBody {
    pub(crate) fn read(self) -> Result<RateLimit, Problem> {
        RateLimit::new(self.max_per_minute, self.burst_capacity).map_err(|error| {
            let field = match error {
                RateLimitError::MaxPerMinute => "max_per_minute",
                RateLimitError::BurstCapacity => "burst_capacity",
            };
            Problem::invalid(field, error).inside("rate_limit")
        })
    }

    pub(crate) fn show(limit: RateLimit) -> RateLimitBody {
        RateLimitBody { max_per_minute: limit.max_per_minute(), burst_capacity: limit.burst_capacity() }
    }
}

/// A limit, or `"unlimited"` where an inherited one is lifted.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RateLimitShown {
    Lifted(Unlimited),
    Limit(RateLimitBody),
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, ToSchema)]
pub(crate) enum Unlimited {
    #[serde(rename = "unlimited")]
    Unlimited,
}

pub(crate) fn show_rate_limit(own: &Override<RateLimit>, in_force: Option<RateLimit>) -> Option<RateLimitShown> {
    match (own, in_force) {
        (Override::Lift, _) => Some(RateLimitShown::Lifted(Unlimited::Unlimited)),
        (Override::Inherit | Override::Set(_), Some(limit)) => Some(RateLimitShown::Limit(RateLimitBody::show(limit))),
        (Override::Inherit | Override::Set(_), None) => None,
    }
}

// Quiet hours.

/// When deliveries are held back: weekly windows in a time zone, and one-off ones.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeliverySchedule)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    /// An IANA name in exact case, such as `America/Chicago`.
    timezone: Option<String>,
    #[serde(default)]
    #[schema(max_items = 100)]
    quiet_hours: Option<Vec<WindowBody>>,
    #[serde(default)]
    #[schema(max_items = 100)]
    maintenance: Vec<MaintenanceBody>,
    /// Left empty, all types.
    #[serde(default)]
    #[schema(max_items = 1000)]
    applies_to: Vec<String>,
    #[serde(default)]
    #[schema(max_items = 1000)]
    bypass_event_types: Vec<String>,
    /// Short for one daily window, with `quiet_end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    quiet_start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    quiet_end: Option<String>,
}

/// One window of wall time. It may cross midnight, and belongs to the day it starts on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = QuietWindow)]
#[serde(deny_unknown_fields)]
struct WindowBody {
    #[schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    start: String,
    #[schema(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    end: String,
    /// Of mon, tue, wed, thu, fri, sat, sun; left out, every day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 7)]
    days: Option<Vec<String>>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MaintenanceWindow)]
#[serde(deny_unknown_fields)]
struct MaintenanceBody {
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    until: String,
}

impl ScheduleBody {
    pub(crate) fn read(self) -> Result<QuietHours, Problem> {
        self.read_inside().map_err(|problem| problem.inside("delivery_schedule"))
    }

    fn read_inside(self) -> Result<QuietHours, Problem> {
        let windows = match (self.quiet_hours, self.quiet_start, self.quiet_end) {
            (windows, None, None) => windows.unwrap_or_default(),
            (None, Some(start), Some(end)) => vec![WindowBody { start, end, days: None }],
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return Err(Problem::invalid(
                    "quiet_start",
                    "the short form (quiet_start, quiet_end) and quiet_hours are not mixed",
                ));
            }
            (None, Some(_), None) => return Err(Problem::invalid("quiet_end", "quiet_start needs an end")),
            (None, None, Some(_)) => return Err(Problem::invalid("quiet_start", "quiet_end needs a start")),
        };
        let zone = match self.timezone {
            Some(zone) => zone,
            // One-off windows are moments and know no zone.
            None if windows.is_empty() => "UTC".to_owned(),
            None => return Err(Problem::invalid("timezone", "quiet hours are in a time zone, such as America/Chicago")),
        };
        if windows.len() > WINDOWS_MAX || self.maintenance.len() > WINDOWS_MAX {
            let field = if windows.len() > WINDOWS_MAX { "quiet_hours" } else { "maintenance" };
            return Err(Problem::invalid(field, QuietHoursError::TooManyWindows));
        }
        let windows = windows
            .iter()
            .enumerate()
            .map(|(index, window)| window.read().map_err(|problem| problem.inside(&format!("quiet_hours[{index}]"))))
            .collect::<Result<Vec<_>, _>>()?;
        let maintenance = self
            .maintenance
            .iter()
            .enumerate()
            .map(|(index, window)| window.read().map_err(|problem| problem.inside(&format!("maintenance[{index}]"))))
            .collect::<Result<Vec<_>, _>>()?;
        let applies_to = patterns("applies_to", &self.applies_to)?;
        let bypass_event_types = patterns("bypass_event_types", &self.bypass_event_types)?;
        QuietHours::new(&zone, windows, maintenance, applies_to, bypass_event_types).map_err(|error| {
            let field = match &error {
                QuietHoursError::UnknownZone { .. } => "timezone".to_owned(),
                QuietHoursError::TooManyWindows | QuietHoursError::NeverOpens => "quiet_hours".to_owned(),
                QuietHoursError::EmptyWindow { number } => format!("quiet_hours[{}]", number - 1),
                QuietHoursError::EmptyMaintenance { number } => format!("maintenance[{}]", number - 1),
                QuietHoursError::HeldAndExempt { .. } => "bypass_event_types".to_owned(),
            };
            Problem::invalid(field, error)
        })
    }

    pub(crate) fn show(schedule: &QuietHours) -> ScheduleBody {
        let window = |window: &Window| WindowBody {
            start: window.start.to_string(),
            end: window.end.to_string(),
            days: (window.days != Days::ALL).then(|| window.days.names().map(str::to_owned).collect()),
        };
        let maintenance =
            |window: &Maintenance| MaintenanceBody { from: window.from.to_rfc3339(), until: window.until.to_rfc3339() };
        ScheduleBody {
            timezone: Some(schedule.zone().to_owned()),
            quiet_hours: Some(schedule.windows().iter().map(window).collect()),
            maintenance: schedule.maintenance().iter().map(maintenance).collect(),
            applies_to: schedule.applies_to().iter().map(ToString::to_string).collect(),
            bypass_event_types: schedule.bypass_event_types().iter().map(ToString::to_string).collect(),
            quiet_start: None,
            quiet_end: None,
        }
    }
}

impl WindowBody {
    fn read(&self) -> Result<Window, Problem> {
        Ok(Window {
            start: TimeOfDay::parse(&self.start).map_err(|error| Problem::invalid("start", error))?,
            end: TimeOfDay::parse(&self.end).map_err(|error| Problem::invalid("end", error))?,
            days: match &self.days {
                None => Days::ALL,
                Some(days) => Days::parse(days.iter().map(String::as_str)).map_err(|error| Problem::invalid("days", error))?,
            },
        })
    }
}

impl MaintenanceBody {
    fn read(&self) -> Result<Maintenance, Problem> {
        Ok(Maintenance {
            from: Timestamp::parse(&self.from).map_err(|error| Problem::invalid("from", error))?,
            until: Timestamp::parse(&self.until).map_err(|error| Problem::invalid("until", error))?,
        })
    }
}

/// A schedule, or `"always"` where an inherited one is lifted.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ScheduleShown {
    Lifted(Always),
    Schedule(ScheduleBody),
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, ToSchema)]
pub(crate) enum Always {
    #[serde(rename = "always")]
    Always,
}

pub(crate) fn show_schedule(own: &Override<QuietHours>, in_force: Option<&QuietHours>) -> Option<ScheduleShown> {
    match (own, in_force) {
        (Override::Lift, _) => Some(ScheduleShown::Lifted(Always::Always)),
        (Override::Inherit | Override::Set(_), Some(schedule)) => Some(ScheduleShown::Schedule(ScheduleBody::show(schedule))),
        (Override::Inherit | Override::Set(_), None) => None,
    }
}

/// A list of types and patterns. The one at fault is named by its place.
pub(crate) fn patterns(field: &str, texts: &[String]) -> Result<TypePatterns, Problem> {
    if texts.len() > TypePatterns::COUNT_MAX {
        return Err(Problem::invalid(field, "at most 1,000 event types in a list"));
    }
    let parse = |(index, text): (usize, &String)| {
        TypePattern::parse(text).map_err(|error| Problem::invalid(format!("{field}[{index}]"), error))
    };
    let patterns = texts.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    TypePatterns::new(patterns).map_err(|error| Problem::invalid(field, error))
}

// Retries.

/// When to try again, and how often. Without `strategy`, what is given says which it is.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Retry)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strategy: Option<StrategyName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 50)]
    delays_seconds: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400_000)]
    base_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800_000)]
    cap_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<JitterName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    jitter_percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 50)]
    max_attempts: Option<u32>,
    /// Statuses from 400 to 499 that would be permanent and are tried again here, or `"4xx"` for all of them but 410.
    #[serde(default)]
    also_statuses: Option<Vec<StatusBody>>,
}

/// A status, or the class `"4xx"`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
enum StatusBody {
    One(u16),
    Class(String),
}

impl StatusBody {
    fn read(&self) -> Result<AlsoStatus, RetryPolicyError> {
        match self {
            StatusBody::One(status) => Ok(AlsoStatus::One(*status)),
            StatusBody::Class(class) if class == AlsoStatus::CLIENT_ERRORS => Ok(AlsoStatus::ClientErrors),
            StatusBody::Class(_) => Err(RetryPolicyError::AlsoStatus),
        }
    }

    fn show(status: AlsoStatus) -> StatusBody {
        match status {
            AlsoStatus::One(status) => StatusBody::One(status),
            AlsoStatus::ClientErrors => StatusBody::Class(AlsoStatus::CLIENT_ERRORS.to_owned()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum StrategyName {
    Schedule,
    Exponential,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum JitterName {
    Full,
    Equal,
    Proportional,
    Decorrelated,
    None,
}

const JITTER_PERCENT_DEFAULT: u32 = 20;
const BASE_DEFAULT: Duration = Duration::from_secs(1);
const FACTOR_DEFAULT: f64 = 2.0;
const CAP_DEFAULT: Duration = Duration::from_hours(1);
const EXPONENTIAL_ATTEMPTS_DEFAULT: u32 = 7;

impl RetryBody {
    pub(crate) fn read(self) -> Result<RetryPolicy, Problem> {
        self.read_inside().map_err(|problem| problem.inside("retry"))
    }

    fn read_inside(self) -> Result<RetryPolicy, Problem> {
        let exponential = [
            ("base_ms", self.base_ms.is_some()),
            ("factor", self.factor.is_some()),
            ("cap_ms", self.cap_ms.is_some()),
            ("jitter", self.jitter.is_some()),
        ];
        let first_exponential = exponential.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name);
        let strategy = self.strategy.unwrap_or(match first_exponential {
            Some(_) => StrategyName::Exponential,
            None => StrategyName::Schedule,
        });
        let mut also_statuses = BTreeSet::new();
        for (index, named) in self.also_statuses.unwrap_or_default().iter().enumerate() {
            let field = || format!("also_statuses[{index}]");
            let named = named.read().map_err(|error| Problem::invalid(field(), error))?;
            if named.statuses().any(|status| !also_statuses.insert(status)) {
                return Err(Problem::invalid(field(), "is named twice"));
            }
        }
        let (strategy, attempts_default) = match strategy {
            StrategyName::Schedule => {
                if let Some(name) = first_exponential {
                    return Err(Problem::invalid(name, "belongs to the strategy `exponential`"));
                }
                if self.delays_seconds.as_ref().is_some_and(Vec::is_empty) {
                    return Err(Problem::invalid(
                        "delays_seconds",
                        "has at least one delay; for a single try set max_attempts to 1",
                    ));
                }
                let delays = self
                    .delays_seconds
                    .map_or_else(default_delays, |seconds| seconds.into_iter().map(Duration::from_secs).collect());
                let attempts = u32::try_from(delays.len()).unwrap_or(u32::MAX).saturating_add(1).min(ATTEMPTS_MAX);
                (Strategy::Schedule { delays, jitter_percent: self.jitter_percent.unwrap_or(JITTER_PERCENT_DEFAULT) }, attempts)
            }
            StrategyName::Exponential => {
                if self.delays_seconds.is_some() {
                    return Err(Problem::invalid("delays_seconds", "belongs to the strategy `schedule`"));
                }
                let percent = self.jitter_percent.unwrap_or(JITTER_PERCENT_DEFAULT);
                if percent > 100 {
                    return Err(Problem::invalid("jitter_percent", RetryPolicyError::JitterPercent));
                }
                let jitter = match self.jitter {
                    Some(JitterName::Equal) => Jitter::Equal,
                    Some(JitterName::Proportional) => Jitter::Proportional { percent },
                    Some(JitterName::Decorrelated) => Jitter::Decorrelated,
                    Some(JitterName::None) => Jitter::None,
                    None if self.jitter_percent.is_some() => Jitter::Proportional { percent },
                    Some(JitterName::Full) | None => Jitter::Full,
                };
                let base = self.base_ms.map_or(BASE_DEFAULT, Duration::from_millis);
                let cap = self.cap_ms.map_or(CAP_DEFAULT.max(base), Duration::from_millis);
                let strategy = Strategy::Exponential { base, factor: self.factor.unwrap_or(FACTOR_DEFAULT), cap, jitter };
                (strategy, EXPONENTIAL_ATTEMPTS_DEFAULT)
            }
        };
        RetryPolicy::new(strategy, self.max_attempts.unwrap_or(attempts_default), also_statuses).map_err(|error| {
            let field = match error {
                RetryPolicyError::MaxAttempts => "max_attempts",
                RetryPolicyError::Base => "base_ms",
                RetryPolicyError::Factor => "factor",
                RetryPolicyError::Cap => "cap_ms",
                RetryPolicyError::JitterPercent => "jitter_percent",
                RetryPolicyError::TooManyDelays | RetryPolicyError::Delay => "delays_seconds",
                RetryPolicyError::AlsoStatus => "also_statuses",
            };
            Problem::invalid(field, error)
        })
    }

    pub(crate) fn show(policy: &RetryPolicy) -> RetryBody {
        let common = RetryBody {
            max_attempts: Some(policy.max_attempts_as_set()),
            also_statuses: Some(AlsoStatus::naming(policy.also_statuses()).into_iter().map(StatusBody::show).collect()),
            ..RetryBody::default()
        };
        match policy.strategy() {
            Strategy::Schedule { delays, jitter_percent } => RetryBody {
                strategy: Some(StrategyName::Schedule),
                delays_seconds: Some(delays.iter().map(Duration::as_secs).collect()),
                jitter_percent: Some(*jitter_percent),
                ..common
            },
            Strategy::Exponential { base, factor, cap, jitter } => {
                let (jitter, jitter_percent) = match jitter {
                    Jitter::None => (JitterName::None, None),
                    Jitter::Full => (JitterName::Full, None),
                    Jitter::Equal => (JitterName::Equal, None),
                    Jitter::Proportional { percent } => (JitterName::Proportional, Some(*percent)),
                    Jitter::Decorrelated => (JitterName::Decorrelated, None),
                };
                RetryBody {
                    strategy: Some(StrategyName::Exponential),
                    base_ms: Some(millis(*base)),
                    factor: Some(*factor),
                    cap_ms: Some(millis(*cap)),
                    jitter: Some(jitter),
                    jitter_percent,
                    ..common
                }
            }
        }
    }
}

fn default_delays() -> Vec<Duration> {
    match RetryPolicy::default().strategy() {
        Strategy::Schedule { delays, .. } => delays.clone(),
        Strategy::Exponential { .. } => vec![],
    }
}

// Timeouts.

/// Learned, or as told. `timeout_ms` alone means `manual`.
#[derive(Clone, PartialEq, Default, Debug, Deserialize, ToSchema)]
#[schema(as = TimeoutSetting)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeoutBody {
    mode: Option<ModeName>,
    #[schema(minimum = 1000, maximum = 60_000)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    method: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    p50_ms: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    p95_ms: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    p99_ms: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    sample_count: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    computed_at: Patch<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeName {
    Adaptive,
    Manual,
}

/// How long we wait for an answer, and how that came about.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[schema(as = Timeout)]
pub(crate) struct TimeoutView {
    mode: ModeName,
    timeout_ms: u64,
    #[schema(value_type = String)]
    method: &'static str,
    p50_ms: Option<u64>,
    p95_ms: Option<u64>,
    p99_ms: Option<u64>,
    sample_count: u64,
    #[schema(format = DateTime)]
    computed_at: Option<String>,
}

impl TimeoutBody {
    /// Whether it says just what is shown.
    pub(crate) fn repeats(&self, shown: &Value) -> bool {
        let mode = self.mode.map(|mode| match mode {
            ModeName::Adaptive => "adaptive",
            ModeName::Manual => "manual",
        });
        mode == shown["mode"].as_str() && self.timeout_ms == shown["timeout_ms"].as_u64() && self.clone().read(Some(shown)).is_ok()
    }

    /// `present` is what is shown now, which may be repeated.
    pub(crate) fn read(self, present: Option<&Value>) -> Result<Mode, Problem> {
        self.read_inside(present).map_err(|problem| problem.inside("timeout"))
    }

    fn read_inside(self, present: Option<&Value>) -> Result<Mode, Problem> {
        let shown = |field: &str| present.and_then(|present| present.get(field));
        for (field, given) in [
            ("method", &self.method),
            ("p50_ms", &self.p50_ms),
            ("p95_ms", &self.p95_ms),
            ("p99_ms", &self.p99_ms),
            ("sample_count", &self.sample_count),
            ("computed_at", &self.computed_at),
        ] {
            check_read_only(field, given, shown(field))?;
        }
        match (self.mode, self.timeout_ms) {
            (None, None) => Err(Problem::invalid("mode", "adaptive or manual")),
            (Some(ModeName::Adaptive), None) => Ok(Mode::Adaptive),
            (Some(ModeName::Adaptive), Some(timeout_ms)) => {
                // What was learned is shown under the same name.
                if shown("timeout_ms").and_then(Value::as_u64) == Some(timeout_ms) {
                    Ok(Mode::Adaptive)
                } else {
                    Err(Problem::invalid("timeout_ms", "is learned while mode is adaptive; set mode to manual to pin it"))
                }
            }
            (Some(ModeName::Manual), None) => Err(Problem::invalid("timeout_ms", "mode manual needs a value")),
            (Some(ModeName::Manual) | None, Some(timeout_ms)) => {
                let pinned = Pinned::new(Duration::from_millis(timeout_ms));
                pinned.map(Mode::Manual).map_err(|error| Problem::invalid("timeout_ms", error))
            }
        }
    }
}

impl TimeoutView {
    pub(crate) fn show(mode: Mode, adaptive: &Adaptive, rules: &TimeoutRules) -> TimeoutView {
        let (timeout, method) = adaptive.in_force(mode, rules);
        let learned = adaptive.learned();
        TimeoutView {
            mode: match mode {
                Mode::Adaptive => ModeName::Adaptive,
                Mode::Manual(_) => ModeName::Manual,
            },
            timeout_ms: millis(timeout),
            method: match method {
                Method::Default => "default",
                Method::Adaptive => "adaptive",
                Method::Manual => "manual",
            },
            p50_ms: learned.map(|learned| millis(learned.p50)),
            p95_ms: learned.map(|learned| millis(learned.p95)),
            p99_ms: learned.map(|learned| millis(learned.p99)),
            sample_count: learned.map_or(0, |learned| learned.sample_count),
            computed_at: learned.map(|learned| learned.computed_at.to_rfc3339()),
        }
    }
}

// Circuit breaker.

/// How many failures in a row open the circuit, and how often it is knocked at then.
#[derive(Clone, PartialEq, Default, Debug, Deserialize, ToSchema)]
#[schema(as = CircuitSetting)]
#[serde(deny_unknown_fields)]
pub(crate) struct CircuitBody {
    #[schema(minimum = 1, maximum = 1000)]
    failure_threshold: Option<u32>,
    #[schema(minimum = 1, maximum = 86_400)]
    probe_interval_seconds: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    state: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    consecutive_failures: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    opened_at: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    next_probe_at: Patch<Value>,
}

#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[schema(as = Circuit)]
pub(crate) struct CircuitView {
    #[schema(value_type = String)]
    state: &'static str,
    failure_threshold: u32,
    probe_interval_seconds: u64,
    consecutive_failures: u32,
    #[schema(format = DateTime)]
    opened_at: Option<String>,
    #[schema(format = DateTime)]
    next_probe_at: Option<String>,
}

impl CircuitBody {
    /// Whether it says just what is shown.
    pub(crate) fn repeats(&self, shown: &Value) -> bool {
        self.failure_threshold.map(u64::from) == shown["failure_threshold"].as_u64()
            && self.probe_interval_seconds == shown["probe_interval_seconds"].as_u64()
            && self.clone().read(Some(shown)).is_ok()
    }

    pub(crate) fn read(self, present: Option<&Value>) -> Result<CircuitPolicy, Problem> {
        self.read_inside(present).map_err(|problem| problem.inside("circuit"))
    }

    fn read_inside(self, present: Option<&Value>) -> Result<CircuitPolicy, Problem> {
        for (field, given) in [
            ("state", &self.state),
            ("consecutive_failures", &self.consecutive_failures),
            ("opened_at", &self.opened_at),
            ("next_probe_at", &self.next_probe_at),
        ] {
            check_read_only(field, given, present.and_then(|present| present.get(field)))?;
        }
        let default = CircuitPolicy::default();
        let threshold = self.failure_threshold.unwrap_or(default.failure_threshold());
        let interval = self.probe_interval_seconds.map_or(default.probe_interval(), Duration::from_secs);
        CircuitPolicy::new(threshold, interval).map_err(|error| {
            let field = match error {
                CircuitPolicyError::FailureThreshold => "failure_threshold",
                CircuitPolicyError::ProbeInterval => "probe_interval_seconds",
            };
            Problem::invalid(field, error)
        })
    }
}

impl CircuitView {
    pub(crate) fn show(policy: &CircuitPolicy, breaker: Breaker) -> CircuitView {
        let (state, opened_at, next_probe_at) = match breaker {
            Breaker::Closed { .. } => ("closed", None, None),
            Breaker::Open { since, probe_at, .. } => ("open", Some(since), Some(probe_at)),
            Breaker::HalfOpen { since, .. } => ("half_open", Some(since), None),
        };
        CircuitView {
            state,
            failure_threshold: policy.failure_threshold(),
            probe_interval_seconds: policy.probe_interval().as_secs(),
            consecutive_failures: breaker.consecutive_failures(),
            opened_at: opened_at.map(Timestamp::to_rfc3339),
            next_probe_at: next_probe_at.map(Timestamp::to_rfc3339),
        }
    }
}

// All of them, as a tenant hands them down.

/// What endpoints inherit. What is `null` comes from the server.
#[derive(Clone, PartialEq, Default, Debug, Deserialize, ToSchema)]
#[schema(as = TenantDefaults)]
#[serde(deny_unknown_fields)]
pub(crate) struct DefaultsBody {
    retry: Option<RetryBody>,
    timeout: Option<TimeoutBody>,
    circuit: Option<CircuitBody>,
    #[serde(default)]
    #[schema(value_type = Option<ScheduleShown>)]
    delivery_schedule: Patch<Liftable<ScheduleBody>>,
    #[serde(default)]
    #[schema(value_type = Option<RateLimitShown>)]
    rate_limit: Patch<Liftable<RateLimitBody>>,
}

impl DefaultsBody {
    pub(crate) fn read(self) -> Result<PolicyOverrides, Problem> {
        Ok(PolicyOverrides {
            retry: self.retry.map(RetryBody::read).transpose()?,
            timeout: self.timeout.map(|timeout| timeout.read(None)).transpose()?,
            circuit: self.circuit.map(|circuit| circuit.read(None)).transpose()?,
            delivery_schedule: overriding(self.delivery_schedule, Override::Inherit, ScheduleBody::read)?,
            rate_limit: overriding(self.rate_limit, Override::Inherit, RateLimitBody::read)?,
        })
    }
}

/// The same, shown: only what was said, so that it can be sent back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TenantDefaultsShown)]
pub(crate) struct DefaultsView {
    retry: Option<RetryBody>,
    timeout: Option<TimeoutSettingView>,
    circuit: Option<CircuitSettingView>,
    delivery_schedule: Option<ScheduleShown>,
    rate_limit: Option<RateLimitShown>,
}

/// A setting without what was observed under it.
#[derive(Debug, Serialize, ToSchema)]
struct TimeoutSettingView {
    mode: ModeName,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CircuitSettingView {
    failure_threshold: u32,
    probe_interval_seconds: u64,
}

impl DefaultsView {
    pub(crate) fn show(defaults: &PolicyOverrides) -> DefaultsView {
        let set = |own: &Override<RateLimit>| match own {
            Override::Set(limit) => Some(*limit),
            Override::Inherit | Override::Lift => None,
        };
        let schedule = match &defaults.delivery_schedule {
            Override::Set(schedule) => Some(schedule),
            Override::Inherit | Override::Lift => None,
        };
        DefaultsView {
            retry: defaults.retry.as_ref().map(RetryBody::show),
            timeout: defaults.timeout.map(|mode| match mode {
                Mode::Adaptive => TimeoutSettingView { mode: ModeName::Adaptive, timeout_ms: None },
                Mode::Manual(pinned) => {
                    TimeoutSettingView { mode: ModeName::Manual, timeout_ms: Some(millis(pinned.as_duration())) }
                }
            }),
            circuit: defaults.circuit.map(|policy| CircuitSettingView {
                failure_threshold: policy.failure_threshold(),
                probe_interval_seconds: policy.probe_interval().as_secs(),
            }),
            delivery_schedule: show_schedule(&defaults.delivery_schedule, schedule),
            rate_limit: show_rate_limit(&defaults.rate_limit, set(&defaults.rate_limit)),
        }
    }
}

/// What applies to an endpoint: the server's, then its tenant's, then its own.
pub(crate) fn in_force(server: &Policies, tenant: Option<&PolicyOverrides>, endpoint: &PolicyOverrides) -> Policies {
    let mut policies = server.clone();
    if let Some(tenant) = tenant {
        policies = policies.overridden_by(tenant);
    }
    policies.overridden_by(endpoint)
}
