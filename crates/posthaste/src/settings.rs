//! Settings are read here and nowhere else: flags over environment over file over defaults.
//!
//! One table says everything about a setting: its name (from which follow the flag, the variable and the key in the
//! file), how it is read, its default, and what it is for. To add one, add a line. Every mistake is reported at once,
//! with where it came from and what is allowed, before a port is bound.

mod rule;
mod source;

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use posthaste_core::bucket::RateLimit;
use posthaste_core::circuit::CircuitPolicy;
use posthaste_core::endpoint::{MaxInFlight, Policies};
use posthaste_core::event::TypePatterns;
use posthaste_core::id::TenantId;
use posthaste_core::quiet_hours::{QuietHours, Window};
use posthaste_core::retry::{AlsoStatus, Jitter, RetryPolicy, Strategy};
use posthaste_core::tenant::{Retention, Share, TenantDefaults};
use posthaste_core::timeout::{Mode, Pinned, TimeoutRules};
use posthaste_store::{MasterKey, SecretText};
use posthaste_traces::{Collector, CollectorHeader};

use rule::{
    Kind, Rule, address, also_status, api_key, boolean, bytes, collector, collector_header, database_address, free_text, ip, list,
    log_levels, mail_address, mail_server, master_key, network, number, one_of, optional, origin, path, proxy_address, tenant,
    type_patterns, web_address, window,
};
pub(crate) use source::{Flags, Mistakes};
use source::{RawValue, Together};

const MIB: usize = 1024 * 1024;
const GIB: usize = 1024 * MIB;

/// Makes the struct, the table and the reading of one from the other.
macro_rules! settings {
    ($($section:literal { $($name:ident: $type:ty = $rule:expr, $default:literal, $purpose:literal;)* })*) => {
        /// Everything that can be set, as it was understood. The compiler warns of a setting that is not used.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings {
            $($(#[doc = $purpose] pub(crate) $name: $type,)*)*
        }

        pub(crate) fn table() -> Vec<Setting> {
            vec![$($(Setting::new($section, stringify!($name), &$rule, $default, $purpose),)*)*]
        }

        /// A value that cannot be read is a mistake, and its default takes its place so that the rest can be looked at.
        fn read(given: &mut RawValue, mistakes: &mut Mistakes) -> Settings {
            Settings { $($($name: given.read(stringify!($name), &$rule, $default, mistakes),)*)* }
        }
    };
}

settings! {
    "The server" {
        listen: SocketAddr = address(), "127.0.0.1:8080", "Where the API is served";
        tls_cert: Option<PathBuf> = optional(path()), "", "The certificate that the API is served with over TLS, with those that vouch for it (PEM); with the next; read again on SIGHUP";
        tls_key: Option<PathBuf> = optional(path()), "", "The key of that certificate (PEM)";
        metrics: bool = boolean(), "true", "Count what happens, show it at `/metrics`, and notice when deliveries stall";
        metrics_listen: Option<SocketAddr> = optional(address()), "", "Where metrics are served to anybody, beside `/metrics` of the API";
        metrics_endpoints_max: usize = number(0, 10_000), "100", "Endpoints with metrics of their own, the busiest; the rest are counted together";
        metrics_types_max: usize = number(0, 10_000), "200", "Pairs of tenant and event type with metrics of their own, the busiest; the rest are counted together";
        public_url: Option<String> = optional(web_address()), "", "The server's own address for people; from `listen` unless set";
        data_dir: PathBuf = path(), "./posthaste-data", "Where the database and the keys are kept";
        database_url: Option<SecretText> = optional(database_address()), "", "PostgreSQL, for many nodes; SQLite in the data directory unless set";
        database_wait_seconds: u64 = number(0, 3_600), "60", "How long a start waits for PostgreSQL while it refuses connections, does not answer or is starting up";
        role: Vec<Role> = list(one_of(&ROLES)), "all", "What this process does: all, or some of api, deliver, relay (with PostgreSQL)";
        hold: bool = boolean(), "false", "Deliver nothing until an operator says `posthaste hold release`; the API works and events are stored";
        outbox: Option<SecretText> = optional(database_address()), "", "The application's database whose outbox is relayed; looked for in `database_url` unless set";
        connections_max: usize = number(16, 1_000_000), "4096", "Open connections to the API; further callers are told to come back";
        connections_per_address_max: usize = number(1, 1_000_000), "1024", "Open connections from one client address, or from one IPv6 network of 64 bits";
        trusted_proxies: Vec<IpNet> = list(network()), "", "Networks of proxies in front of this server: their connections are not counted by address";
        header_timeout_ms: u64 = number(1_000, 600_000), "30000", "How long a caller may take over the head of a request";
        portal_origins: Vec<String> = list(origin()), "", "Origins of your own applications, whose pages may frame the portal, have its logo, and call the API with portal tokens";
        strict_tenants: bool = boolean(), "false", "Refuse tenants that nobody has made";
    }
    "Keys" {
        admin_key: Option<SecretText> = optional(api_key()), "", "The first admin key; made at first start unless set";
        master_key: Option<MasterKey> = optional(master_key()), "", "Seals secrets; made at first start unless set, required with PostgreSQL";
        previous_master_keys: Vec<MasterKey> = list(master_key()), "", "Master keys from before a rotation; they only open";
    }
    "Logs" {
        log: String = log_levels(), "info", "What is logged, also by module: `info,posthaste_store=debug`; read again on SIGHUP";
        log_format: LogFormat = one_of(&LOG_FORMATS), "human", "How: human or json";
    }
    "Traces" {
        otlp_endpoint: Option<Collector> = optional(collector()), "", "The OpenTelemetry collector that traces are sent to (OTLP over HTTP), such as `http://localhost:4318`; none unless set";
        otlp_headers: Vec<CollectorHeader> = list(collector_header()), "", "Sent with every request to it, such as `authorization=Bearer%20…`";
        trace_sample_ratio: f64 = number(0.0, 1.0), "0.01", "The share of events whose traces are sent; a caller that sends a `traceparent` decides for its own";
    }
    "Where deliveries may go" {
        allow_networks: Vec<IpNet> = list(network()), "", "Networks that deliveries may reach although they are private";
        allow_http: bool = boolean(), "false", "Allow endpoints without TLS";
        proxy: Option<SecretText> = optional(proxy_address()), "", "A proxy that all deliveries go through";
        bind_address: Option<IpAddr> = optional(ip()), "", "The address that deliveries come from";
        extra_roots: Vec<PathBuf> = list(path()), "", "Files with root certificates to trust beside the usual ones (PEM)";
    }
    "Notifications" {
        notifications: bool = boolean(), "true", "Tell tenants and operators of endpoints that fail, are disabled or recover";
        notifications_tenant: TenantId = tenant(), "posthaste", "The tenant that notifications are published into; operators make endpoints there";
        notification_pause_seconds: u64 = number(0, 604_800), "900", "Between two notifications of one kind about one endpoint";
        secret_overlap_notice_seconds: u64 = number(0, 604_800), "7200", "How long before the overlap of a rotated secret ends that is told";
        dead_letters_growing_min: u64 = number(1, 1_000_000), "10", "Dead letters of a tenant in an hour that are told, if they are more than twice as many as usual";
        smtp_url: Option<SecretText> = optional(mail_server()), "", "The mail server for notifications, such as `smtp://user:password@mail.example.com:587?tls=required`";
        smtp_from: Option<String> = optional(mail_address()), "", "The address that mails come from";
        smtp_operators: Vec<String> = list(mail_address()), "", "Addresses of those who run this server; they get every notification";
    }
    "Limits" {
        payload_bytes_max: usize = bytes(1024, 64 * MIB), "1MiB", "The body of a request other than a batch";
        batch_events_max: usize = number(1, 100_000), "1000", "Events in a batch";
        batch_bytes_max: usize = bytes(1024, GIB), "16MiB", "The body of a batch";
        endpoints_per_tenant_max: u32 = number(1, 1_000_000), "1000", "Endpoints of one tenant";
        types_per_endpoint_max: usize = number(1, TypePatterns::COUNT_MAX), "1000", "Event types that an endpoint may list";
        in_flight_per_endpoint: u32 = number(1, 1_000), "16", "Requests in flight to one endpoint, unless the endpoint says";
        in_flight_per_tenant: u32 = number(1, 100_000), "256", "Requests in flight of one tenant, unless the tenant says";
        in_flight_max: usize = number(1, 100_000), "1024", "Requests in flight from this process";
        replays_per_minute: u32 = number(1, 1_000_000), "600", "Deliveries that one replay makes in a minute";
        test_send_pause_seconds: u64 = number(0, 86_400), "5", "Between two test-sends to one endpoint";
        api_rate: u32 = number(1, 1_000_000), "100", "Calls in a second with one key, publishing apart";
        api_burst: u32 = number(1, 1_000_000), "1000", "Calls at once with one key, publishing apart";
        retries_per_minute_max: Option<u32> = optional(number(1, 1_000_000)), "", "For incidents: second and later tries of everybody together";
        request_bytes_max: usize = bytes(MIB, 64 * GIB), "64MiB", "Bodies of requests that are being read, together";
        commit_queue_bytes_max: usize = bytes(MIB, 64 * GIB), "32MiB", "What waits to be written";
        cached_body_bytes_max: usize = bytes(MIB, 64 * GIB), "32MiB", "Payloads kept in memory for deliveries that wait";
        in_flight_bytes_max: usize = bytes(MIB, 64 * GIB), "32MiB", "Payloads in flight";
    }
    "What is kept" {
        retention_days: u32 = number(1, 365), "30", "How long events and deliveries are kept, unless the tenant says";
        dead_letters_kept_days: u32 = number(1, 3_650), "30", "How long dead letters are kept, where that is longer than the retention of their tenant";
        audit_kept_days: u32 = number(1, 36_500), "365", "How long the audit log is kept";
        idempotency_keys_kept_hours: u32 = number(1, 8_760), "24", "How long idempotency keys are remembered";
    }
    "Policies, where neither tenant nor endpoint says anything" {
        retry_strategy: RetryStrategy = one_of(&RETRY_STRATEGIES), "schedule", "schedule (a list of delays) or exponential";
        retry_delays_seconds: Vec<u64> = list(number(0, 604_800)), "30,120,600,1800,7200,21600,86400", "Delays between tries (schedule)";
        retry_max_attempts: u32 = number(1, 50), "8", "Tries in all";
        retry_base_ms: u64 = number(1, 86_400_000), "1000", "The first delay (exponential)";
        retry_factor: f64 = number(1.0, 10.0), "2", "What each delay is multiplied with (exponential)";
        retry_cap_ms: u64 = number(1, 604_800_000), "3600000", "The longest delay (exponential)";
        retry_jitter: JitterKind = one_of(&JITTERS), "full", "How delays are spread: full, equal, proportional, decorrelated, none (exponential)";
        retry_jitter_percent: u32 = number(0, 100), "20", "By how much (schedule, proportional)";
        retry_also_statuses: Vec<AlsoStatus> = list(also_status()), "", "Statuses that are worth another try although they are permanent";
        circuit_failure_threshold: u32 = number(1, 1_000), "5", "Failures in a row that open the circuit";
        circuit_probe_interval_seconds: u64 = number(1, 86_400), "60", "Between two probes of an open circuit";
        rate_limit_max_per_minute: Option<u32> = optional(number(1, 1_000_000)), "", "Requests to one endpoint, sustained; with the next";
        rate_limit_burst_capacity: Option<u32> = optional(number(1, 1_000_000)), "", "Requests to one endpoint, at once; with the one before";
        quiet_hours: Vec<Window> = list(window()), "", "When endpoints are not called: 22:00-06:00, on some days 22:00-06:00 sat sun";
        quiet_hours_timezone: String = free_text(), "UTC", "The time zone of quiet hours, such as Europe/Berlin";
        quiet_hours_applies_to: TypePatterns = type_patterns(), "", "Event types that wait in quiet hours; all unless set";
        quiet_hours_bypass_event_types: TypePatterns = type_patterns(), "", "Event types that do not";
        timeout_mode: TimeoutMode = one_of(&TIMEOUT_MODES), "adaptive", "adaptive (learned) or manual (`timeout_ms`)";
        timeout_ms: u64 = number(1_000, 60_000), "10000", "How long answers may take (manual)";
        timeout_default_ms: u64 = number(1_000, 60_000), "10000", "The same until enough is known (adaptive)";
        timeout_min_ms: u64 = number(1_000, 60_000), "1000", "The shortest learned timeout";
        timeout_max_ms: u64 = number(1_000, 60_000), "30000", "The longest learned timeout";
        timeout_multiplier: f64 = number(1.0, 10.0), "1.5", "What the 99th percentile is multiplied with";
        timeout_buffer_ms: u64 = number(0, 60_000), "500", "What is added to it";
        timeout_samples_min: u64 = number(1, 1_000_000), "100", "Answers that it takes to learn from";
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    All,
    Api,
    Deliver,
    Relay,
}

const ROLES: [(&str, Role); 4] = [("all", Role::All), ("api", Role::Api), ("deliver", Role::Deliver), ("relay", Role::Relay)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    Human,
    Json,
}

const LOG_FORMATS: [(&str, LogFormat); 2] = [("human", LogFormat::Human), ("json", LogFormat::Json)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetryStrategy {
    Schedule,
    Exponential,
}

const RETRY_STRATEGIES: [(&str, RetryStrategy); 2] =
    [("schedule", RetryStrategy::Schedule), ("exponential", RetryStrategy::Exponential)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JitterKind {
    None,
    Full,
    Equal,
    Proportional,
    Decorrelated,
}

const JITTERS: [(&str, JitterKind); 5] = [
    ("full", JitterKind::Full),
    ("equal", JitterKind::Equal),
    ("proportional", JitterKind::Proportional),
    ("decorrelated", JitterKind::Decorrelated),
    ("none", JitterKind::None),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeoutMode {
    Adaptive,
    Manual,
}

const TIMEOUT_MODES: [(&str, TimeoutMode); 2] = [("adaptive", TimeoutMode::Adaptive), ("manual", TimeoutMode::Manual)];

impl Settings {
    /// From the process's own environment.
    pub(crate) fn load(flags: &Flags) -> Result<Settings, Mistakes> {
        let (settings, mistakes) = understood(RawValue::gather(flags, std::env::vars_os()));
        if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
    }

    /// The same, whatever is wrong with it: what cannot be read is taken at its default.
    pub(crate) fn load_what_can_be(flags: &Flags) -> (Settings, Mistakes) {
        understood(RawValue::gather(flags, std::env::vars_os()))
    }

    /// As if nobody had said anything. For programs inside this one.
    pub(crate) fn unsaid() -> Settings {
        understood(RawValue::gather(&Flags::default(), [])).0
    }

    pub(crate) fn has_role(&self, role: Role) -> bool {
        self.role.contains(&Role::All) || self.role.contains(&role)
    }

    /// What applies to a tenant that does not set its own.
    pub(crate) fn tenant_defaults(&self) -> TenantDefaults {
        let weight = Share::default().weight();
        TenantDefaults {
            share: Share::new(weight, self.in_flight_per_tenant).expect("the setting has the same bounds"),
            retention: Retention::days(self.retention_days).expect("the setting has the same bounds"),
        }
    }

    /// What applies to an endpoint about which nobody has said anything.
    pub(crate) fn policies(&self) -> Result<Policies, Together> {
        Ok(Policies {
            retry: self.retry_policy()?,
            timeout: match self.timeout_mode {
                TimeoutMode::Adaptive => Mode::Adaptive,
                TimeoutMode::Manual => {
                    Mode::Manual(Pinned::new(Duration::from_millis(self.timeout_ms)).map_err(Together::of(&["timeout_ms"]))?)
                }
            },
            circuit: CircuitPolicy::new(self.circuit_failure_threshold, Duration::from_secs(self.circuit_probe_interval_seconds))
                .map_err(Together::of(&["circuit_failure_threshold", "circuit_probe_interval_seconds"]))?,
            max_in_flight: MaxInFlight::new(self.in_flight_per_endpoint).expect("the setting has the same bounds"),
            delivery_schedule: self.delivery_schedule()?,
            rate_limit: self.rate_limit()?,
        })
    }

    fn retry_policy(&self) -> Result<RetryPolicy, Together> {
        let jitter = match self.retry_jitter {
            JitterKind::None => Jitter::None,
            JitterKind::Full => Jitter::Full,
            JitterKind::Equal => Jitter::Equal,
            JitterKind::Proportional => Jitter::Proportional { percent: self.retry_jitter_percent },
            JitterKind::Decorrelated => Jitter::Decorrelated,
        };
        let strategy = match self.retry_strategy {
            RetryStrategy::Schedule => Strategy::Schedule {
                delays: self.retry_delays_seconds.iter().copied().map(Duration::from_secs).collect(),
                jitter_percent: self.retry_jitter_percent,
            },
            RetryStrategy::Exponential => Strategy::Exponential {
                base: Duration::from_millis(self.retry_base_ms),
                factor: self.retry_factor,
                cap: Duration::from_millis(self.retry_cap_ms),
                jitter,
            },
        };
        RetryPolicy::new(
            strategy,
            self.retry_max_attempts,
            self.retry_also_statuses.iter().flat_map(|named| named.statuses()).collect(),
        )
        .map_err(Together::of(&["retry_cap_ms", "retry_base_ms", "retry_delays_seconds"]))
    }

    fn rate_limit(&self) -> Result<Option<RateLimit>, Together> {
        const NAMES: [&str; 2] = ["rate_limit_max_per_minute", "rate_limit_burst_capacity"];
        match (self.rate_limit_max_per_minute, self.rate_limit_burst_capacity) {
            (None, None) => Ok(None),
            (Some(per_minute), Some(burst)) => RateLimit::new(per_minute, burst).map(Some).map_err(Together::of(&NAMES)),
            (Some(_), None) | (None, Some(_)) => Err(Together::of(&NAMES)("both are set, or neither")),
        }
    }

    fn delivery_schedule(&self) -> Result<Option<QuietHours>, Together> {
        if self.quiet_hours.is_empty() {
            return Ok(None);
        }
        QuietHours::new(
            &self.quiet_hours_timezone,
            self.quiet_hours.clone(),
            vec![],
            self.quiet_hours_applies_to.clone(),
            self.quiet_hours_bypass_event_types.clone(),
        )
        .map(Some)
        .map_err(Together::of(&[
            "quiet_hours",
            "quiet_hours_timezone",
            "quiet_hours_applies_to",
            "quiet_hours_bypass_event_types",
        ]))
    }

    pub(crate) fn timeout_rules(&self) -> Result<TimeoutRules, Together> {
        let is_in_order = self.timeout_min_ms <= self.timeout_default_ms && self.timeout_default_ms <= self.timeout_max_ms;
        if !is_in_order {
            let names = ["timeout_min_ms", "timeout_default_ms", "timeout_max_ms"];
            return Err(Together::of(&names)("the shortest is at most the default, and that at most the longest"));
        }
        Ok(TimeoutRules {
            default: Duration::from_millis(self.timeout_default_ms),
            min: Duration::from_millis(self.timeout_min_ms),
            max: Duration::from_millis(self.timeout_max_ms),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 10 by its rule")]
            multiplier_percent: (self.timeout_multiplier * 100.0).round() as u32,
            buffer: Duration::from_millis(self.timeout_buffer_ms),
            samples_min: self.timeout_samples_min,
        })
    }

    /// What two settings say together.
    fn check(&self) -> Vec<Together> {
        let mut wrong: Vec<Together> = [self.policies().err(), self.timeout_rules().err()].into_iter().flatten().collect();
        if self.role.is_empty() {
            wrong.push(Together::of(&["role"])("name at least one: all, api, deliver, relay"));
        }
        let is_everything = self.has_role(Role::Api) && self.has_role(Role::Deliver) && self.has_role(Role::Relay);
        if self.database_url.is_none() && !is_everything {
            wrong.push(Together::of(&["role", "database_url"])(
                "roles are split between processes that share PostgreSQL; one process owns a SQLite data directory and does \
                 everything. Set database_url, or leave role at all",
            ));
        }
        if self.database_url.is_some() && self.master_key.is_none() {
            wrong.push(Together::of(&["master_key", "database_url"])(
                "PostgreSQL is shared by many nodes, which need the same master key: set POSTHASTE_MASTER_KEY to the base64 of 32 \
                 random bytes (`head -c 32 /dev/urandom | base64`), and keep it",
            ));
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            wrong.push(Together::of(&["tls_cert", "tls_key"])("TLS needs both a certificate and its key"));
        }
        if self.metrics_listen.is_some() && !self.metrics {
            wrong.push(Together::of(&["metrics_listen", "metrics"])("there is nothing to serve where nothing is counted"));
        }
        if self.otlp_endpoint.is_none() && !self.otlp_headers.is_empty() {
            wrong.push(Together::of(&["otlp_headers", "otlp_endpoint"])("there is no collector that they could be sent to"));
        }
        if self.smtp_url.is_some() != self.smtp_from.is_some() {
            wrong.push(Together::of(&["smtp_url", "smtp_from"])("mails need both a server and an address that they come from"));
        }
        if self.smtp_url.is_none() && !self.smtp_operators.is_empty() {
            wrong.push(Together::of(&["smtp_operators", "smtp_url"])("nobody can be written to without a mail server"));
        }
        if self.batch_bytes_max < self.payload_bytes_max {
            wrong.push(Together::of(&["batch_bytes_max", "payload_bytes_max"])("a batch is at least as large as one event"));
        }
        wrong
    }

    /// The default of `public_url`.
    pub(crate) fn public_url(&self, listening: SocketAddr) -> String {
        self.public_url.clone().unwrap_or_else(|| {
            let ip = listening.ip();
            // Nobody can call "every address".
            let shown = if ip.is_unspecified() { format!("localhost:{}", listening.port()) } else { listening.to_string() };
            format!("{}://{shown}", self.scheme())
        })
    }

    /// Of the API, without a proxy.
    fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }

    /// Whether keys and payloads would cross a network that others can read.
    pub(crate) fn is_open_to_listeners(&self, listening: SocketAddr) -> bool {
        let is_https = self.public_url.as_ref().is_some_and(|url| url.starts_with("https://"));
        !listening.ip().to_canonical().is_loopback() && self.tls_cert.is_none() && !is_https
    }
}

/// What a command that is not the server logs: little, unless it is asked for.
pub(crate) fn log_levels_of_commands() -> String {
    std::env::var("POSTHASTE_LOG").ok().filter(|levels| !levels.is_empty()).unwrap_or_else(|| "error".to_owned())
}

/// What encrypts the keys in a backup, where no file was named.
pub(crate) fn backup_passphrase() -> Option<String> {
    std::env::var(source::BACKUP_PASSPHRASE).ok().filter(|passphrase| !passphrase.is_empty())
}

/// What a command that is a client of the API goes by, where no flag says otherwise.
// No `Debug`: it holds keys.
pub(crate) struct ClientSettings {
    pub(crate) url: Option<String>,
    pub(crate) api_key: Option<String>,
    /// The server of this machine, as its own settings have it.
    pub(crate) local_url: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) admin_key: Option<String>,
}

/// Mistakes in the server's settings are the server's to tell.
pub(crate) fn of_client(flags: &Flags) -> ClientSettings {
    let (settings, _) = Settings::load_what_can_be(flags);
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let [url, api_key] = source::VARIABLES_OF_CLIENTS.map(variable);
    let listen = settings.listen;
    // Nobody can call "every address".
    let host = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    let local_url = match (&settings.tls_cert, &settings.public_url) {
        // Its certificate is for the name that people use.
        (Some(_), Some(public_url)) => public_url.clone(),
        (Some(_) | None, _) => format!("{}://{}", settings.scheme(), SocketAddr::new(host, listen.port())),
    };
    ClientSettings { url, api_key, local_url, data_dir: settings.data_dir, admin_key: settings.admin_key.map(|key| key.0) }
}

/// What was understood, as a file that would say the same. Secrets are not shown.
pub(crate) fn printed(flags: &Flags) -> String {
    let (given, _) = RawValue::gather(flags, std::env::vars_os());
    shown(&given)
}

fn shown(given: &RawValue) -> String {
    let mut page = String::new();
    let mut section = "";
    for setting in table() {
        if setting.section != section {
            section = setting.section;
            let separator = if page.is_empty() { "" } else { "\n" };
            let _ = writeln!(page, "{separator}# {section}");
        }
        let (value, origin) = given.of(&setting);
        let quoted = match setting.kind {
            _ if value.is_empty() && setting.kind != Kind::List => "\"\"".to_owned(),
            Kind::Secret => "\"(set)\"".to_owned(),
            Kind::Number if value.parse::<f64>().is_ok() => value.to_owned(),
            Kind::Boolean => value.to_owned(),
            Kind::Number | Kind::Text => quote(value),
            Kind::List => {
                let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(quote);
                format!("[{}]", parts.collect::<Vec<_>>().join(", "))
            }
        };
        let _ = writeln!(page, "{} = {quoted}  # {origin}", setting.name);
    }
    page
}

/// As TOML wants it.
fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// One line of the table, without the type.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    section: &'static str,
    name: &'static str,
    kind: Kind,
    allowed: String,
    default: &'static str,
    purpose: &'static str,
}

impl Setting {
    fn new<T>(section: &'static str, name: &'static str, rule: &Rule<T>, default: &'static str, purpose: &'static str) -> Setting {
        Setting { section, name, kind: rule.kind, allowed: rule.allowed.clone(), default, purpose }
    }

    fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    fn variable(&self) -> String {
        format!("POSTHASTE_{}", self.name.to_ascii_uppercase())
    }

    /// The variable that names a file with the value, of a secret.
    fn file_variable(&self) -> Option<String> {
        (self.kind == Kind::Secret).then(|| format!("{}_FILE", self.variable()))
    }
}

fn understood((mut given, mut mistakes): (RawValue, Mistakes)) -> (Settings, Mistakes) {
    let settings = read(&mut given, &mut mistakes);
    for together in settings.check() {
        given.blame(together, &mut mistakes);
    }
    (settings, mistakes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn load(arguments: &[&str], variables: &[(&str, &str)], file: Option<&str>) -> Result<Settings, String> {
        let mut flags = source::test_flags(arguments);
        let path =
            std::env::temp_dir().join(format!("posthaste-settings-{}-{:?}.toml", std::process::id(), std::thread::current().id()));
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
            flags.set_config(&path);
        }
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let (settings, mistakes) = understood(RawValue::gather(&flags, variables.collect::<Vec<_>>()));
        let _ = std::fs::remove_file(&path);
        if mistakes.is_empty() {
            Ok(settings)
        } else {
            Err(mistakes.to_string().replace(&path.display().to_string(), "posthaste.toml"))
        }
    }

    /// `cargo xtask fuzz` runs this for longer.
    #[test]
    fn fuzz_settings() {
        let inputs = posthaste_fuzzing::Inputs {
            examples: &[
                "listen = '127.0.0.1:1'\nin_flight_max = 7\n[circuit]\nfailure_threshold = 9",
                "allow_networks = ['10.0.0.0/8']\nallow_http = true\nquiet_hours = ['22:00-06:00']\nrole = ['api', 'deliver']",
                "retry_delays_seconds = [30, 120]\nretry_strategy = 'schedule'\npublic_url = 'https://x.example'\nlog = 'info'",
            ],
            dictionary: &[
                "=",
                "[",
                "]",
                "'",
                "\n",
                "-1",
                "99999999999999999999",
                "1e999",
                "MiB",
                "true",
                "_max",
                "retention_days",
                "::1/129",
                "\u{0}",
                "inf",
                "{a=1}",
                "[[x]]",
                "\"\"\"",
                "#",
            ],
        };
        posthaste_fuzzing::fuzz("settings", inputs, |input| {
            let Ok(text) = std::str::from_utf8(input) else { return String::new() };
            let Err(mistakes) = load(&[], &[], Some(text)) else { return "understood".to_owned() };
            assert!(!mistakes.trim().is_empty(), "a refusal says why");
            mistakes.chars().filter(char::is_ascii_alphabetic).take(60).collect()
        });
    }

    #[test]
    fn flags_win_over_the_environment_which_wins_over_the_file_which_wins_over_defaults() {
        let file = "listen = '127.0.0.1:1'\nin_flight_max = 7\nretry_max_attempts = 3\n[circuit]\nfailure_threshold = 9";
        let variables =
            [("POSTHASTE_LISTEN", "127.0.0.1:2"), ("POSTHASTE_IN_FLIGHT_MAX", "8"), ("POSTHASTE_RETRY_MAX_ATTEMPTS", "")];
        let settings = load(&["--listen", "127.0.0.1:3"], &variables, Some(file)).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:3".parse().unwrap());
        assert_eq!(settings.in_flight_max, 8);
        assert_eq!(settings.retry_max_attempts, 3, "an empty variable is one that is not set");
        assert_eq!(settings.circuit_failure_threshold, 9, "a table is a way to write the beginning of names once");
        assert_eq!(settings.batch_events_max, 1000);
    }

    #[test]
    fn every_mistake_is_told_at_once_with_where_it_is_and_what_is_allowed() {
        let file = "# a comment\nin_flight_mx = 3\nallow_http = 'perhaps'\n\nretention_days = 0";
        let variables = [("POSTHASTE_LISTNE", "x"), ("POSTHASTE_API_RATE", "many"), ("POSTHASTE_MASTER_KEY", "c2VjcmV0")];
        let error = load(&["--role", "api", "--listen", "8080"], &variables, Some(file)).unwrap_err();
        for part in [
            "posthaste.toml:2: there is no setting `in_flight_mx`; did you mean `in_flight_max`?",
            "posthaste.toml:3: `perhaps` is not true or false",
            "posthaste.toml:5: `0` is not a number from 1 to 365",
            "POSTHASTE_LISTNE: there is no such setting; did you mean POSTHASTE_LISTEN?",
            "POSTHASTE_API_RATE: `many` is not a number from 1 to 1000000",
            "POSTHASTE_MASTER_KEY: not the base64 of 32 random bytes",
            "--role: roles are split",
            "--listen: `8080` is not an address and a port",
        ] {
            assert!(error.contains(part), "{part}\nis missing from\n{error}");
        }
        assert_eq!(error.lines().count(), 8, "{error}");
        assert!(!error.contains("c2VjcmV0"), "a secret is not shown even if it is wrong");
    }

    #[test]
    fn settings_that_contradict_each_other_are_mistakes() {
        for (arguments, part) in [
            (vec!["--rate-limit-max-per-minute", "5"], "both are set, or neither"),
            (vec!["--timeout-min-ms", "20000"], "the shortest is at most the default"),
            (
                vec!["--retry-strategy", "exponential", "--retry-base-ms", "500", "--retry-cap-ms", "100"],
                "cap_ms is at least base_ms",
            ),
            (vec!["--quiet-hours", "22:00-06:00", "--quiet-hours-timezone", "Mars/Base"], "is not an IANA time zone"),
            (vec!["--quiet-hours", "00:00-12:00,12:00-00:00"], "nothing would ever be delivered"),
            (vec!["--database-url", "postgres://a/b"], "the same master key"),
            (vec!["--role", ""], "at least one"),
            (vec!["--smtp-url", "smtp://mail.example.com"], "both a server and an address"),
            (vec!["--smtp-operators", "a@b.example"], "without a mail server"),
            (vec!["--otlp-headers", "a=b"], "no collector that they could be sent to"),
            (vec!["--allow-networks", "10.0.0.1/8"], "host bits"),
        ] {
            let error = load(&arguments, &[], None).unwrap_err();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn what_one_bad_value_leads_to_is_not_told_as_well() {
        let error = load(&["--rate-limit-max-per-minute", "none", "--rate-limit-burst-capacity", "5"], &[], None).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn the_defaults_are_those_of_the_core() {
        let settings = load(&[], &[], None).unwrap();
        assert_eq!(settings.policies().ok().unwrap(), Policies::default());
        assert_eq!(settings.timeout_rules().ok().unwrap(), TimeoutRules::default());
        assert_eq!(settings.payload_bytes_max, 1024 * 1024);
        assert!(!settings.allow_http && settings.allow_networks.is_empty(), "what could reach inside has to be asked for");
    }

    #[test]
    fn what_takes_days_or_memory_to_see_is_what_parts_are_told() {
        let flags = [
            "--timeout-min-ms",
            "2000",
            "--timeout-max-ms",
            "40000",
            "--timeout-multiplier",
            "2.5",
            "--timeout-buffer-ms",
            "700",
            "--timeout-samples-min",
            "50",
            "--request-bytes-max",
            "2MiB",
            "--commit-queue-bytes-max",
            "3MiB",
            "--cached-body-bytes-max",
            "4MiB",
        ];
        let settings = load(&flags, &[], None).unwrap();
        let rules = settings.timeout_rules().ok().unwrap();
        let millis = Duration::from_millis;
        assert_eq!((rules.min, rules.max, rules.buffer), (millis(2_000), millis(40_000), millis(700)));
        assert_eq!((rules.multiplier_percent, rules.samples_min), (250, 50));
        let (api, engine, store) = crate::serve::options_of(&settings);
        assert_eq!((api.timeout_rules, engine.timeouts), (rules, rules));
        assert_eq!((api.bodies_bytes_max, store.commit_queue_bytes_max, engine.cached_body_bytes_max), (2 * MIB, 3 * MIB, 4 * MIB));
    }

    #[test]
    fn flags_for_lists_and_for_yes_may_be_given_as_people_do() {
        let settings =
            load(&["--allow-networks", "127.0.0.0/8", "--allow-networks", "::1/128,10.0.0.0/8", "--allow-http"], &[], None)
                .unwrap();
        assert_eq!(settings.allow_networks.len(), 3);
        assert!(settings.allow_http);
        assert!(!load(&["--allow-http=false"], &[("POSTHASTE_ALLOW_HTTP", "true")], None).unwrap().allow_http);
        let file = "allow_networks = ['127.0.0.0/8', '::1/128']\npayload_bytes_max = '2MiB'\nquiet_hours = ['22:00-06:00 sat sun']";
        let settings = load(&[], &[], Some(file)).unwrap();
        assert_eq!((settings.allow_networks.len(), settings.payload_bytes_max), (2, 2 * MIB));
        assert!(settings.policies().ok().unwrap().delivery_schedule.is_some());
    }

    #[test]
    fn what_a_cluster_puts_into_the_environment_by_itself_is_no_mistake() {
        let variables = [
            ("POSTHASTE_SERVICE_HOST", "10.0.0.1"),
            ("POSTHASTE_SERVICE_PORT_HTTP", "8080"),
            ("POSTHASTE_PORT", "tcp://10.0.0.1:8080"),
            ("POSTHASTE_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("POSTHASTE_URL", "http://127.0.0.1:8080"),
            ("POSTHASTE_API_KEY", "phk_0123456789"),
        ];
        load(&[], &variables, None).unwrap();
        assert!(load(&[], &[("POSTHASTE_PORT", "8080")], None).is_err(), "somebody meant the port");
    }

    #[test]
    fn what_is_printed_says_the_same_when_it_is_read_and_shows_no_secret() {
        let key = "cGFzc3dvcmQgcGFzc3dvcmQgcGFzc3dvcmQgMTIzNDU=";
        let variables =
            vec![("POSTHASTE_MASTER_KEY".into(), key.into()), ("POSTHASTE_ALLOW_NETWORKS".into(), "::1/128,10.0.0.0/8".into())];
        let flags = source::test_flags(&["--admin-key", "canary-canary-canary-canary", "--retry-factor", "1.5"]);
        let (given, mistakes) = RawValue::gather(&flags, variables);
        assert!(mistakes.is_empty(), "{mistakes}");
        let page = shown(&given);
        assert!(!page.contains("canary") && !page.contains(key), "{page}");
        assert!(page.contains("admin_key = \"(set)\"  # --admin-key"), "{page}");
        assert!(page.contains("listen = \"127.0.0.1:8080\"  # default"), "{page}");
        let again: String = page.lines().filter(|line| !line.contains("(set)")).fold(String::new(), |all, line| all + line + "\n");
        let settings = load(&[], &[], Some(&again)).unwrap();
        assert_eq!(settings.allow_networks.len(), 2);
        assert!((settings.retry_factor - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn where_traces_go_is_understood_or_refused_and_its_headers_are_never_shown() {
        let flags = source::test_flags(&[
            "--otlp-endpoint",
            "http://localhost:4318",
            "--otlp-headers",
            "authorization=Bearer%20canary,x-key=canary",
            "--trace-sample-ratio",
            "0.5",
        ]);
        let (given, mistakes) = RawValue::gather(&flags, vec![]);
        assert!(mistakes.is_empty(), "{mistakes}");
        let page = shown(&given);
        assert!(!page.contains("canary") && page.contains("otlp_headers = \"(set)\""), "{page}");
        assert!(page.contains("otlp_endpoint = \"http://localhost:4318\"") && page.contains("trace_sample_ratio = 0.5"), "{page}");
        let settings = understood((given, mistakes)).0;
        assert_eq!(settings.otlp_headers.len(), 2);
        assert!(!format!("{settings:?}").contains("canary"));
        assert!((load(&[], &[], None).unwrap().trace_sample_ratio - 0.01).abs() < f64::EPSILON);
        for (arguments, part) in [
            (["--otlp-endpoint", "localhost:4317"], "http:// or https://"),
            (["--otlp-endpoint", "http://canary:canary@x"], "otlp_headers is for them"),
            (["--trace-sample-ratio", "2"], "a number from 0 to 1"),
        ] {
            let error = load(&arguments, &[], None).unwrap_err();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
        let error = load(&["--otlp-endpoint", "http://x", "--otlp-headers", "canary"], &[], None).unwrap_err();
        assert!(error.contains("a header is a name") && !error.contains("canary"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_mistake_with_its_place() {
        let error = load(&[], &[], Some("listen = \n")).unwrap_err();
        assert!(error.starts_with("posthaste.toml:1: "), "{error}");
        let error = load(&["--config", "/nowhere/posthaste.toml"], &[], None).unwrap_err();
        assert!(error.contains("/nowhere/posthaste.toml cannot be read"), "{error}");
    }

    const GUIDE: &str = "# Settings

Every setting can be given as a flag, as a variable of the environment, or in a file. A flag wins over a variable, a variable over the
file, the file over the default. An empty variable is one that is not set. The file is `posthaste.toml` in the directory where the server is
started, or what `--config` or `POSTHASTE_CONFIG` names; `payload_bytes_max` there is `--payload-bytes-max` as a flag and
`POSTHASTE_PAYLOAD_BYTES_MAX` in the environment. A table is a way to write the beginning of names once: `max_attempts` in `[retry]` is
`retry_max_attempts`. Lists are separated by commas; in the file they are lists. Each secret can also be given as a file
([running.md](running.md#secrets-and-files)): `--admin-key-file`, `POSTHASTE_ADMIN_KEY_FILE`.

`posthaste serve --print-config` shows what was understood and where it came from, without secrets, as a file that would say the same. A
name that does not exist, a value that cannot be, and settings that contradict each other are all told at once, each with its place, before
anything is touched.

What is set here for everybody, a tenant can override for its endpoints, and an endpoint for itself (retry, timeout, circuit, rate limit,
quiet hours).
";

    #[test]
    fn the_guide_lists_every_setting_as_it_is() {
        let mut page = GUIDE.to_owned();
        let mut section = "";
        for setting in table() {
            if setting.section != section {
                section = setting.section;
                let _ = write!(page, "\n## {section}\n\n| setting | default | what it is for | allowed |\n|---|---|---|---|\n");
            }
            let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
            let _ = writeln!(page, "| `{}` | {default} | {} | {} |", setting.name, setting.purpose, setting.allowed);
        }
        expect_test::expect_file!["../../../docs/guide/settings.md"].assert_eq(&page);
    }

    #[test]
    fn every_setting_has_a_name_of_its_own_and_a_purpose() {
        let table = table();
        assert_eq!(table.iter().map(|setting| setting.name).collect::<BTreeSet<_>>().len(), table.len());
        assert!(table.iter().all(|setting| !setting.purpose.is_empty() && !setting.purpose.ends_with('.')));
    }
}
