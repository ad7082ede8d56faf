//! A server, its receivers and its publishers, in a directory of their own.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use base64::Engine;
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::draw::Draw;
use crate::evidence::{
    Change, Clock, DeliveryState, Endpoint, Evidence, Hit, Listed, Moment, Outcome, Parity, Pause, QuietWindow, RateLimit,
    ReplayEnd, Retry, Row, Setting,
};
use crate::publisher::{EVENT_TYPES, LATER, Load, ORDERED, PublishLog, Publishing};
use crate::receiver::{Behaviour, Receiver};
use crate::server::{Process, Program};
use crate::wall;

/// What every delivery may be tried. Enough that none gives up in these worlds.
const MAX_ATTEMPTS: u32 = 50;
/// Nothing is settled before this long without news, and everything has to be.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// How many deliveries are looked up one by one in the end; which ones is drawn.
const LOOKED_UP_MAX: usize = 10_000;
const CALLERS: usize = 4;
/// After this long without a fault everything has settled.
const CALM: Duration = Duration::from_secs(15);
/// The endpoint that is paused now and then: one that is healthy, beside others of its tenant.
const PAUSED: usize = 5;
/// Whose URL, headers and secret change.
const CHANGED: usize = 4;

/// The tenant with caps, and slow receivers.
const CAPPED: u32 = 6;
const CAPPED_ENDPOINT: u32 = 2;
const CAPPED_TENANT: u32 = 3;
/// The tenant with quiet hours.
const QUIET: u32 = 7;
/// The tenant that is replayed.
const REPLAYED: u32 = 8;
/// The tenant whose endpoints' timeout, filter, status and rate limit change.
const UNSTEADY: u32 = 9;
/// No edge of a window comes sooner than this after its endpoint was made.
const EDGE_IN: Moment = 4_000_000;
/// How long after the edge of a window publishing goes on.
const AFTER_EDGE: Moment = 1_500_000;
/// On PostgreSQL all nodes need the same one.
const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const REPLAYS_END_WITHIN: Duration = Duration::from_mins(1);

/// What the server keeps its rows in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Database {
    Sqlite,
    /// One of its own.
    Postgres,
}

#[derive(Debug)]
pub struct World {
    pub clock: Clock,
    pub seed: u64,
    pub program: Program,
    pub receiver: Arc<Receiver>,
    pub desk: Arc<PublishLog>,
    process: Option<Process>,
    endpoints: Vec<Endpoint>,
    kills: Vec<Moment>,
    shares: Vec<u64>,
    paused_from: Option<Moment>,
    /// How often settings were changed.
    marks: u64,
    /// One healthy endpoint, and a load of nothing but good events.
    is_plain: bool,
    /// When a window ends at one endpoint and begins at another, and which that is.
    edge: Option<(Moment, usize)>,
    /// Where timeout, filter, status and rate limit change.
    unsteady: Option<[usize; 4]>,
    evidence: Evidence,
    directory: PathBuf,
    postgres: Option<posthaste_testpg::Server>,
}

impl World {
    /// Everything but the server itself, which is not started yet.
    pub async fn new(binary: &Path, seed: u64) -> anyhow::Result<World> {
        World::on(Database::Sqlite, binary, seed).await
    }

    pub async fn on(database: Database, binary: &Path, seed: u64) -> anyhow::Result<World> {
        let directory =
            std::env::temp_dir().join(format!("posthaste-checker-{}-{:016x}", std::process::id(), rand::random::<u64>()));
        std::fs::create_dir_all(&directory)?;
        let clock = Clock::start();
        let receiver = Receiver::start(clock, seed).await?;
        let flags = [
            "--log warn",
            // Everything is looked up in the end, with one key.
            "--api-rate 1000000",
            "--api-burst 1000000",
            "--replays-per-minute 6000",
            "--allow-http",
            "--allow-networks 127.0.0.0/8",
            "--retry-strategy exponential",
            "--retry-base-ms 50",
            "--retry-cap-ms 1000",
            "--retry-max-attempts 50",
            "--circuit-probe-interval-seconds 1",
            // Long enough that a busy machine does not take an answer that was given for one that was not.
            "--timeout-default-ms 3000",
        ];
        let flags = flags.iter().flat_map(|flag| flag.split(' ')).map(str::to_owned).collect();
        let mut program = Program {
            binary: binary.to_owned(),
            data_dir: directory.join("data"),
            listen: free_port()?,
            admin_key: format!("phk_checker_{:032x}", rand::random::<u128>()),
            flags,
            log: directory.join("log"),
        };
        let postgres = (database == Database::Postgres).then(posthaste_testpg::Server::start);
        if let Some(postgres) = &postgres {
            program.set("--database-url", &postgres.url());
            program.set("--master-key", MASTER_KEY);
        }
        let evidence = Evidence { max_attempts: MAX_ATTEMPTS, ..Evidence::default() };
        let desk = PublishLog::new(clock);
        let shares = Vec::new();
        let (process, endpoints, kills) = (None, Vec::new(), Vec::new());
        Ok(World {
            clock,
            seed,
            program,
            receiver,
            desk,
            process,
            endpoints,
            kills,
            shares,
            paused_from: None,
            marks: 0,
            is_plain: false,
            edge: None,
            unsteady: None,
            evidence,
            directory,
            postgres,
        })
    }

    pub fn caller(&self) -> Caller {
        Caller::new(self.program.listen, &self.program.admin_key)
    }

    /// Starts the server and waits until it answers. Says how long that took.
    pub async fn start(&mut self, under: &[&str]) -> anyhow::Result<Duration> {
        let mut process = self.program.start(under)?;
        let took = self.program.ready(&mut process).await?;
        self.process = Some(process);
        Ok(took)
    }

    /// Starts it and does not wait.
    pub fn launch(&mut self) -> anyhow::Result<()> {
        self.process = Some(self.program.start(&[])?);
        Ok(())
    }

    /// Waits for one that was launched.
    pub async fn ready(&mut self) -> anyhow::Result<Duration> {
        let process = self.process.as_mut().context("launched")?;
        self.program.ready(process).await
    }

    pub fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().context("the server runs")
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            // Noted afterwards: what it sent up to its very end was sent before this moment.
            self.kills.push(self.clock.now());
        }
        Ok(())
    }

    /// Notes that another node on the same database has died just now, or stands still for longer than its lease: what it had in
    /// flight may come again.
    pub fn note_death_of_another(&mut self) {
        self.kills.push(self.clock.now());
    }

    /// Notes that the server could not write from then until now.
    pub fn note_outage(&mut self, from: Moment) {
        self.evidence.outages.push((from, self.clock.now()));
    }

    /// SIGTERM, and it has to end well.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let mut process = self.process.take().context("the server runs")?;
        let status = process.stop().await?;
        if !status.success() {
            bail!("after SIGTERM the server ended with {status}: {}", self.program.last_words());
        }
        Ok(())
    }

    /// Tenants and endpoints for all moods. Also finds out what this server offers.
    pub async fn furnish(&mut self) -> anyhow::Result<()> {
        for mood in [Behaviour::Healthy, Behaviour::Slow, Behaviour::Flaky, Behaviour::Picky] {
            self.make_endpoint(0, mood, None).await?;
        }
        self.make_endpoint(1, Behaviour::Healthy, Some("order.")).await?;
        self.make_endpoint(1, Behaviour::Healthy, None).await?;
        self.make_endpoint(2, Behaviour::Going, None).await?;
        self.make_endpoint(2, Behaviour::Healthy, None).await?;
        self.shares = vec![8, 4, 3];
        self.probe_rate_limits().await?;
        self.probe_pauses().await?;
        self.probe_idempotency_keys().await
    }

    /// Tenants whose deliveries have an order, a time, a cap, quiet hours or replays, with their shares of what is published.
    pub async fn furnish_shapes(&mut self, shares: &[u64; 5]) -> anyhow::Result<()> {
        // Long enough to be told from what measuring may be off by.
        let retry = Retry { base: 1_000_000, factor: 2, cap: 2_000_000 };
        let shown = json!({"strategy": "exponential", "base_ms": 1000, "factor": 2, "cap_ms": 2000, "jitter": "equal", "max_attempts": MAX_ATTEMPTS});
        let said = json!({"retry": shown, "circuit": {"failure_threshold": 1000}});
        self.make_special(ORDERED, Behaviour::Busy, said, |endpoint| endpoint.retry = Some(retry)).await?;
        self.make_special(LATER, Behaviour::Healthy, json!({}), |_| {}).await?;
        let tenant = format!("/v1/tenants/t{CAPPED}");
        let answer =
            self.caller().call(http::Method::PUT, &tenant, json!({"max_in_flight": CAPPED_TENANT}).to_string().into()).await;
        let answer = answer.map_err(|_| anyhow::anyhow!("no answer to {tenant}"))?;
        if !(200..300).contains(&answer.status) {
            bail!("{tenant} answered {}: {}", answer.status, answer.json());
        }
        self.evidence.tenant_caps.insert(CAPPED, CAPPED_TENANT);
        for _ in 0..2 {
            let said = json!({"max_in_flight": CAPPED_ENDPOINT});
            self.make_special(CAPPED, Behaviour::Sluggish, said, |endpoint| endpoint.max_in_flight = Some(CAPPED_ENDPOINT)).await?;
        }
        self.furnish_quiet_hours().await?;
        for _ in 0..2 {
            self.make_special(REPLAYED, Behaviour::Healthy, json!({}), |_| {}).await?;
        }
        self.shares.resize(usize::try_from(ORDERED)?, 0);
        self.shares.extend(shares);
        Ok(())
    }

    /// Endpoints whose timeout, filter, status and rate limit [`World::change`] changes.
    pub async fn furnish_changes(&mut self, share: u64) -> anyhow::Result<()> {
        let first = self.endpoints.len();
        self.make_special(UNSTEADY, Behaviour::Hanging, json!({"circuit": {"failure_threshold": 1000}}), |_| {}).await?;
        // Nothing is owed where not all events are wanted, or may be refused.
        for _ in 0..2 {
            self.make_special(UNSTEADY, Behaviour::Healthy, json!({}), |endpoint| endpoint.is_doomed = true).await?;
        }
        self.make_special(UNSTEADY, Behaviour::Healthy, json!({}), |_| {}).await?;
        self.unsteady = Some([first, first + 1, first + 2, first + 3]);
        self.shares.resize(usize::try_from(UNSTEADY)?, 0);
        self.shares.push(share);
        Ok(())
    }

    /// A window that ends soon, and at another endpoint one that begins then: windows have edges at whole minutes.
    async fn furnish_quiet_hours(&mut self) -> anyhow::Result<()> {
        let edge_minutes = (self.clock.wall(self.clock.now()) + EDGE_IN).div_ceil(60_000_000);
        let edge = self.clock.at_wall(edge_minutes * 60_000_000);
        let (zone, offset) = wall::ZONES[usize::try_from(self.seed % wall::ZONES.len() as u64)?];
        let bypass = EVENT_TYPES[1];
        for (from, until) in [(edge_minutes - 120, edge_minutes), (edge_minutes, edge_minutes + 120)] {
            let face = |minutes| wall::clock_face(minutes, offset);
            let schedule =
                json!({"quiet_start": face(from), "quiet_end": face(until), "timezone": zone, "bypass_event_types": [bypass]});
            self.make_special(QUIET, Behaviour::Healthy, json!({"delivery_schedule": schedule}), |_| {}).await?;
        }
        let begins = self.endpoints.len() - 1;
        let from = self.endpoints[begins - 1].made;
        self.evidence.quiet.push(QuietWindow { endpoint: begins - 1, from, until: edge, bypass, is_whole: true });
        self.edge = Some((edge, begins));
        Ok(())
    }

    async fn make_special(
        &mut self,
        tenant: u32,
        mood: Behaviour,
        mut said: Value,
        change: impl FnOnce(&mut Endpoint),
    ) -> anyhow::Result<()> {
        said["tenant"] = format!("t{tenant}").into();
        if let Some(refusal) = self.try_endpoint(tenant, mood, None, said, None).await? {
            bail!("an endpoint was refused: {refusal}");
        }
        change(self.endpoints.last_mut().context("made just now")?);
        Ok(())
    }

    /// Waits until the edge of the windows has passed, and takes back the one that began then: what it holds is owed.
    pub async fn pass_edge(&mut self) -> anyhow::Result<()> {
        let Some((edge, endpoint)) = self.edge.take() else { return Ok(()) };
        while self.clock.now() < edge + AFTER_EDGE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let path = format!("/v1/endpoints/{}", self.endpoints[endpoint].id);
        let until = self.clock.now();
        let answer = self.caller().call(http::Method::PATCH, &path, json!({"delivery_schedule": null}).to_string().into()).await;
        let answer = answer.map_err(|_| anyhow::anyhow!("no answer to a change"))?;
        if answer.status != 200 {
            bail!("{path} answered {}: {}", answer.status, answer.json());
        }
        let bypass = EVENT_TYPES[1];
        self.evidence.quiet.push(QuietWindow { endpoint, from: edge, until, bypass, is_whole: false });
        Ok(())
    }

    /// Sends again what a tenant was sent; if the answer is lost, the list of replays has it in the end or not.
    pub async fn replay(&mut self) {
        let body = json!({"tenant": format!("t{REPLAYED}"), "status": ["delivered"], "reason": "the checker wants it"});
        let _ = self.caller().post("/v1/replays", &body).await;
    }

    /// While nothing else is going on: one more replay, which has to make what a dry run says. Waits until all have ended.
    pub async fn finish_replays(&mut self) -> anyhow::Result<()> {
        self.wait_for_replays().await?;
        self.settle().await;
        let mut caller = self.caller();
        let endpoint = self.endpoints.iter().find(|endpoint| endpoint.tenant == REPLAYED).context("an endpoint")?.id.clone();
        let mut body = json!({"endpoint": endpoint, "status": ["delivered"], "reason": "the checker counts", "dry_run": true});
        let dry = asked(&mut caller, "/v1/replays", &body, 200).await?;
        body["dry_run"] = false.into();
        let replay = asked(&mut caller, "/v1/replays", &body, 202).await?;
        let id = replay["id"].as_str().context("an id")?.into();
        self.evidence.dry_runs.insert(id, dry["remaining"].as_u64().context("a count")?);
        self.evidence.replays = self.wait_for_replays().await?;
        self.evidence.rows = self.rows_of_replayed().await?;
        Ok(())
    }

    async fn wait_for_replays(&self) -> anyhow::Result<Vec<ReplayEnd>> {
        let deadline = Instant::now() + REPLAYS_END_WITHIN;
        let mut caller = self.caller();
        loop {
            let answer = caller.get(&format!("/v1/replays?tenant=t{REPLAYED}&limit=250")).await;
            let answer = answer.map_err(|_| anyhow::anyhow!("the server does not answer"))?.json();
            let replays: Vec<ReplayEnd> = answer["data"].as_array().context("a list")?.iter().map(replay_end).collect();
            if replays.iter().all(|replay| replay.state != "running") || Instant::now() > deadline {
                return Ok(replays);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn rows_of_replayed(&self) -> anyhow::Result<Vec<Row>> {
        let (mut rows, mut cursor, mut caller) = (Vec::new(), String::new(), self.caller());
        loop {
            let answer = caller.get(&format!("/v1/deliveries?tenant=t{REPLAYED}&limit=250{cursor}")).await;
            let answer = answer.map_err(|_| anyhow::anyhow!("the server does not answer"))?.json();
            for row in answer["data"].as_array().context("a list")? {
                let text = |name: &str| row[name].as_str().map(Box::<str>::from);
                let (id, event, endpoint) = (text("id").context("an id")?, text("event"), text("endpoint"));
                let (event, endpoint) = (event.context("an event")?, endpoint.context("an endpoint")?);
                rows.push(Row { id, event, endpoint, replay: text("replay"), replay_of: text("replay_of") });
            }
            match answer["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(rows),
            }
        }
    }

    /// One healthy endpoint of one tenant, for worlds that are about something else.
    pub async fn furnish_plainly(&mut self) -> anyhow::Result<()> {
        self.shares = vec![1];
        self.is_plain = true;
        self.make_endpoint(0, Behaviour::Healthy, None).await
    }

    /// The share of the first tenant in what is published.
    pub fn give_share(&mut self, share: u64) {
        self.shares = vec![share];
    }

    /// Endpoints at which seven events wait each, for reasons that do not go away: quiet hours, a rate limit, a pause and
    /// `deliver_at`. Two of the last are called off, and one of the second leaves at once. Nobody is owed these.
    pub async fn furnish_holds(&mut self) -> anyhow::Result<()> {
        let mut caller = self.caller();
        let url = self.receiver.url(self.receiver.add(Behaviour::Healthy));
        let minutes = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 60 % 1440;
        let clock = |minute: u64| format!("{:02}:{:02}", minute % 1440 / 60, minute % 60);
        let quiet = json!({"quiet_start": clock(minutes + 1380), "quiet_end": clock(minutes + 120), "timezone": "UTC"});
        for (tenant, said) in [
            ("quiet", json!({"delivery_schedule": quiet})),
            ("limited", json!({"rate_limit": {"max_per_minute": 1, "burst_capacity": 1}})),
            ("paused", json!({})),
            ("later", json!({})),
        ] {
            let mut body = json!({"tenant": tenant, "url": url});
            body.as_object_mut().context("an object")?.extend(said.as_object().context("an object")?.clone());
            let endpoint = asked(&mut caller, "/v1/endpoints", &body, 201).await?;
            if tenant == "paused" {
                let path = format!("/v1/endpoints/{}/pause", endpoint["id"].as_str().context("an id")?);
                asked(&mut caller, &path, &json!({}), 200).await?;
            }
            let deliver_at = in_the_middle_of_next_month(endpoint["created_at"].as_str().context("a time")?)?;
            for _ in 0..7 {
                let deliver_at = (tenant == "later").then_some(&deliver_at);
                let event = json!({"tenant": tenant, "type": "hold.made", "data": {}, "deliver_at": deliver_at});
                asked(&mut caller, "/v1/events", &event, 202).await?;
            }
        }
        let waiting = caller.get("/v1/deliveries?tenant=later&limit=2").await;
        let waiting = waiting.map_err(|_| anyhow::anyhow!("no answer to a call"))?.json();
        for row in waiting["data"].as_array().context("a list")? {
            let path = format!("/v1/deliveries/{}/cancel", row["id"].as_str().context("an id")?);
            asked(&mut caller, &path, &json!({}), 200).await?;
        }
        Ok(())
    }

    /// Makes an endpoint. Nobody is owed anything at one whose answer was lost.
    pub async fn make_endpoint(&mut self, tenant: u32, mood: Behaviour, wants: Option<&'static str>) -> anyhow::Result<()> {
        let types = wants.map(|beginning| format!("{beginning}*"));
        let body = json!({"tenant": format!("t{tenant}"), "event_types": Vec::from_iter(types)});
        match self.try_endpoint(tenant, mood, wants, body, None).await? {
            None => Ok(()),
            Some(refusal) => bail!("an endpoint was refused: {refusal}"),
        }
    }

    async fn try_endpoint(
        &mut self,
        tenant: u32,
        mood: Behaviour,
        wants: Option<&'static str>,
        mut body: Value,
        rate_limit: Option<RateLimit>,
    ) -> anyhow::Result<Option<Value>> {
        let place = self.receiver.add(mood);
        body["url"] = self.receiver.url(place).into();
        let answer = self.caller().post("/v1/endpoints", &body).await;
        let never = Moment::MAX;
        let mut endpoint = Endpoint {
            tenant,
            wants,
            id: "".into(),
            made: never,
            is_doomed: mood == Behaviour::Going,
            rate_limit,
            retry: None,
            max_in_flight: None,
        };
        let mut refusal = None;
        match answer {
            Ok(answered) if answered.status == 201 => {
                let json = answered.json();
                self.receiver.add_secret(place, json["secret"].as_str().context("a new endpoint shows its secret")?);
                endpoint.id = json["id"].as_str().context("an endpoint has an id")?.into();
                endpoint.made = self.clock.now();
            }
            Ok(answered) => refusal = Some(answered.json()),
            Err(_) => {}
        }
        // The places of the receiver and these have the same numbers.
        self.endpoints.push(endpoint);
        Ok(refusal)
    }

    /// Finds out whether the endpoint that [`World::pause`] is about can be paused.
    async fn probe_pauses(&mut self) -> anyhow::Result<()> {
        let path = format!("/v1/endpoints/{}/resume", self.endpoints[PAUSED].id);
        let answer = self.caller().post(&path, &json!({})).await.map_err(|_| anyhow::anyhow!("no answer to a call"))?;
        if answer.status != 200 {
            self.evidence.missing.insert("I28", format!("endpoints cannot be paused (answered {})", answer.status));
        }
        Ok(())
    }

    /// Changes URL, header and secret of one of the endpoints, and other settings of others. From each answer on, and across every restart, they are in force; what was
    /// not answered may be or not.
    pub async fn change(&mut self) {
        let (clock, mut caller) = (self.clock, self.caller());
        let path = format!("/v1/endpoints/{}", self.endpoints[CHANGED].id);
        let mark = self.marks;
        self.marks += 1;
        let url = format!("{}?mark={mark}", self.receiver.url(CHANGED));
        let said = json!({"url": url, "headers": {"x-mark": mark.to_string()}});
        let is_mark = |change: &Change| matches!(change.setting, Setting::Mark(_));
        self.end_change(is_mark, clock.now());
        if caller.call(http::Method::PATCH, &path, said.to_string().into()).await.is_ok_and(|answered| answered.status == 200) {
            let setting = Setting::Mark(mark);
            self.evidence.changes.push(Change { endpoint: CHANGED, from: clock.now(), until: Moment::MAX, setting });
        }
        let secret = format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(rand::random::<[u8; 32]>()));
        let number = self.receiver.add_secret(CHANGED, &secret);
        self.end_change(|change| matches!(change.setting, Setting::Secret(_)), clock.now());
        let said = json!({"secret": secret, "overlap_seconds": 0});
        if caller.post(&format!("{path}/rotate-secret"), &said).await.is_ok_and(|answered| answered.status == 200) {
            let setting = Setting::Secret(number);
            self.evidence.changes.push(Change { endpoint: CHANGED, from: clock.now(), until: Moment::MAX, setting });
        }
        self.change_the_rest().await;
    }

    /// The same for timeout, filter, status and rate limit, each at an endpoint of its own.
    async fn change_the_rest(&mut self) {
        let Some([timed, filtered, disabled, limited]) = self.unsteady else { return };
        let is_odd = self.marks % 2 == 1;
        let (timeout_ms, parity) = if is_odd { (1_000, Parity::Odd) } else { (2_500, Parity::Even) };
        let limit = if is_odd {
            RateLimit { max_per_minute: 120, burst_capacity: 2 }
        } else {
            RateLimit { max_per_minute: 60_000, burst_capacity: 1_000 }
        };
        let said = json!({"timeout": {"mode": "manual", "timeout_ms": timeout_ms}});
        self.change_one(timed, "", &said, Some(Setting::Timeout(timeout_ms * 1_000))).await;
        let said = json!({"filter": {"data.even": !is_odd}});
        self.change_one(filtered, "", &said, Some(Setting::Wants(parity))).await;
        let verb = if is_odd { "/disable" } else { "/enable" };
        self.change_one(disabled, verb, &Value::Null, is_odd.then_some(Setting::Disabled)).await;
        let said = json!({"max_per_minute": limit.max_per_minute, "burst_capacity": limit.burst_capacity});
        self.change_one(limited, "", &json!({"rate_limit": said}), Some(Setting::RateLimit(limit))).await;
    }

    async fn change_one(&mut self, endpoint: usize, verb: &str, said: &Value, setting: Option<Setting>) {
        let path = format!("/v1/endpoints/{}{verb}", self.endpoints[endpoint].id);
        let method = if verb.is_empty() { http::Method::PATCH } else { http::Method::POST };
        let body = if said.is_null() { String::new() } else { said.to_string() };
        let now = self.clock.now();
        self.end_change(|change| change.endpoint == endpoint, now);
        let answer = self.caller().call(method, &path, body.into()).await;
        if let Some(setting) = setting.filter(|_| answer.is_ok_and(|answered| answered.status == 200)) {
            self.evidence.changes.push(Change { endpoint, from: self.clock.now(), until: Moment::MAX, setting });
        }
    }

    /// What a rate limit holds is owed: from now on it may go.
    pub async fn end_changes(&mut self) -> anyhow::Result<()> {
        let Some([.., limited]) = self.unsteady else { return Ok(()) };
        self.end_change(|change| change.endpoint == limited, self.clock.now());
        let path = format!("/v1/endpoints/{}", self.endpoints[limited].id);
        let said = json!({"rate_limit": "unlimited"}).to_string();
        let answer = self.caller().call(http::Method::PATCH, &path, said.into()).await;
        let status = answer.map_err(|_| anyhow::anyhow!("no answer to a change"))?.status;
        if status == 200 { Ok(()) } else { bail!("{path} answered {status}") }
    }

    fn end_change(&mut self, which: impl Fn(&Change) -> bool, now: Moment) {
        for change in self.evidence.changes.iter_mut().filter(|change| change.until == Moment::MAX && which(change)) {
            change.until = now;
        }
    }

    /// Pauses one of the endpoints, or resumes it; if that can be done, and if the answer comes.
    pub async fn pause(&mut self, is_paused: bool) {
        if self.evidence.missing.contains_key("I28") {
            return;
        }
        let verb = if is_paused { "pause" } else { "resume" };
        let sent = self.clock.now();
        let answer = self.caller().post(&format!("/v1/endpoints/{}/{verb}", self.endpoints[PAUSED].id), &json!({})).await;
        let is_done = answer.is_ok_and(|answered| answered.status == 200);
        match (is_paused, self.paused_from) {
            (true, None) if is_done => self.paused_from = Some(self.clock.now()),
            // Whether it was heard or not: from here on it may be in force.
            (false, Some(from)) => {
                self.evidence.pauses.push(Pause { endpoint: PAUSED, from, until: sent });
                self.paused_from = None;
            }
            (true, Some(_)) | (_, None) => {}
        }
    }

    async fn probe_rate_limits(&mut self) -> anyhow::Result<()> {
        let limit = RateLimit { max_per_minute: 1200, burst_capacity: 5 };
        let shown = json!({"max_per_minute": limit.max_per_minute, "burst_capacity": limit.burst_capacity});
        let body = json!({"tenant": "t3", "rate_limit": shown});
        match self.try_endpoint(3, Behaviour::Healthy, None, body, Some(limit)).await? {
            None => self.shares.push(1),
            Some(refusal) => {
                self.evidence.missing.insert("I23", format!("endpoints take no rate_limit: {}", refusal["detail"]));
            }
        }
        Ok(())
    }

    async fn probe_idempotency_keys(&mut self) -> anyhow::Result<()> {
        let body = json!({"type": "probe.made", "tenant": "probe", "data": {}, "idempotency_key": "probe"});
        let answer = self.caller().post("/v1/events", &body).await.map_err(|_| anyhow::anyhow!("no answer to the first event"))?;
        if answer.status != 202 {
            let detail = answer.json()["detail"].clone();
            self.evidence.missing.insert("I18", format!("events take no idempotency_key: {detail}"));
        }
        Ok(())
    }

    pub fn load(&self, rate: u64) -> Load {
        Load {
            server: self.program.listen,
            key: self.program.admin_key.clone(),
            seed: self.seed,
            rate,
            // Each with time for a slow answer between two turns.
            callers: (rate / 16).clamp(16, 64).min(rate.max(1)),
            shares: self.shares.clone(),
            has_idempotency_keys: !self.evidence.missing.contains_key("I18") && !self.is_plain,
            has_bad_ones: !self.is_plain,
            filler_bytes: 300,
        }
    }

    pub fn publish(&self, rate: u64) -> Publishing {
        self.desk.start(&self.load(rate))
    }

    /// How many deliveries are owed and have not come to an end.
    pub fn owed(&self) -> usize {
        let (publishes, cancels) = (self.desk.publishes(), self.desk.cancels());
        let cancelled: HashSet<&str> = cancels.iter().map(|cancel| &*cancel.event).collect();
        let is_owed = |outcome: &Outcome| matches!(outcome, Outcome::Ok { event, .. } if !cancelled.contains(&**event));
        let mut owed = HashSet::new();
        for publish in publishes.iter().filter(|publish| is_owed(&publish.outcome)) {
            for (place, endpoint) in self.endpoints.iter().enumerate() {
                let is_for_it = endpoint.tenant == publish.tenant && endpoint.wants(publish.event_type) && !endpoint.is_doomed;
                if is_for_it && endpoint.made < publish.sent && !self.receiver.is_settled(place, publish.serial) {
                    owed.insert((place, publish.serial));
                }
            }
        }
        owed.len()
    }

    /// Everybody is well; waits until nothing is owed, or nothing has moved for a while. Answers what is still owed.
    pub async fn settle(&self) -> usize {
        self.receiver.heal();
        let mut last_news = (Instant::now(), self.receiver.hit_count());
        loop {
            let (owed, hits) = (self.owed(), self.receiver.hit_count());
            if hits != last_news.1 {
                last_news = (Instant::now(), hits);
            }
            let quiet = last_news.0.elapsed();
            // A little longer than needed, so that what should not come has time to.
            if (owed == 0 && quiet > Duration::from_secs(3)) || quiet > QUIET_MAX {
                return owed;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asks the server about everything that was seen, and hands over all that is known.
    pub async fn testify(&mut self) -> anyhow::Result<Evidence> {
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.publishes = self.desk.publishes();
        evidence.cancels = self.desk.cancels();
        evidence.hits = self.receiver.hits();
        evidence.endpoints.clone_from(&self.endpoints);
        evidence.kills.clone_from(&self.kills);
        let mut caller = self.caller();
        for endpoint in self.endpoints.iter().filter(|endpoint| !endpoint.id.is_empty()) {
            let answer = caller.get(&format!("/v1/endpoints/{}", endpoint.id)).await;
            let answer = answer.map_err(|_| anyhow::anyhow!("the server does not answer"))?;
            let status = answer.json()["status"].as_str().unwrap_or("unknown").to_owned();
            evidence.endpoint_statuses.insert(endpoint.id.clone(), status);
        }
        evidence.deliveries = self.look_up(&evidence).await?;
        self.look_again(&mut evidence).await?;
        self.list(&mut evidence).await?;
        Ok(evidence)
    }

    /// What has been answered may still have to be written down: it has the time that counts as calm.
    async fn look_again(&self, evidence: &mut Evidence) -> anyhow::Result<()> {
        let deadline = Instant::now() + CALM;
        let is_doomed = |hit: &&Hit| evidence.endpoints.get(hit.endpoint).is_some_and(|endpoint| endpoint.is_doomed);
        let doomed: HashSet<&str> = evidence.hits.iter().filter(is_doomed).map(|hit| &*hit.delivery).collect();
        let unfinished = evidence.deliveries.iter().filter(|(id, state)| !state.is_over() && !doomed.contains(&***id));
        let mut unfinished: Vec<Box<str>> = unfinished.map(|(id, _)| id.clone()).collect();
        while !unfinished.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let found = self.look_up_these(&unfinished).await?;
            unfinished.retain(|id| found.get(id).is_none_or(|state| !state.is_over()));
            evidence.deliveries.extend(found);
        }
        Ok(())
    }

    async fn look_up(&self, evidence: &Evidence) -> anyhow::Result<HashMap<Box<str>, DeliveryState>> {
        let distinct: HashSet<&str> = evidence.hits.iter().map(|hit| &*hit.delivery).collect();
        let mut ids: Vec<Box<str>> = distinct.into_iter().map(Into::into).collect();
        ids.sort_unstable();
        let mut draw = Draw::new(self.seed);
        while ids.len() > LOOKED_UP_MAX {
            let at = usize::try_from(draw.number() % ids.len() as u64).expect("less than its length");
            ids.swap_remove(at);
        }
        self.look_up_these(&ids).await
    }

    async fn look_up_these(&self, ids: &[Box<str>]) -> anyhow::Result<HashMap<Box<str>, DeliveryState>> {
        let mut tasks = tokio::task::JoinSet::new();
        for part in ids.chunks(ids.len().div_ceil(CALLERS).max(1)) {
            let (part, mut caller) = (part.to_vec(), self.caller());
            tasks.spawn(async move {
                let mut found = Vec::new();
                for id in part {
                    let Ok(answer) = caller.get(&format!("/v1/deliveries/{id}")).await else { continue };
                    let json = answer.json();
                    let text = |name: &str| json[name].as_str().map(str::to_owned);
                    let status = text("status").unwrap_or_else(|| format!("answered {}", answer.status));
                    let reason = text("dead_reason").or_else(|| text("cancel_reason"));
                    let attempt_count = json["attempt_count"].as_u64().unwrap_or_default();
                    found.push((id, DeliveryState { status, reason, attempt_count }));
                }
                found
            });
        }
        let found: HashMap<_, _> = tasks.join_all().await.into_iter().flatten().collect();
        if found.len() < ids.len() {
            bail!("{} of {} deliveries could not be looked up", ids.len() - found.len(), ids.len());
        }
        Ok(found)
    }

    /// By event, where the server has such a list.
    async fn list(&self, evidence: &mut Evidence) -> anyhow::Result<()> {
        let mut caller = self.caller();
        let acknowledged = evidence.publishes.iter().filter_map(|publish| match &publish.outcome {
            Outcome::Ok { event, .. } => Some((publish.tenant, event.clone())),
            Outcome::No | Outcome::Unknown => None,
        });
        let mut events: Vec<(u32, Box<str>)> = acknowledged.collect();
        let mut draw = Draw::new(self.seed ^ 1);
        while events.len() > LOOKED_UP_MAX / 10 {
            let at = usize::try_from(draw.number() % events.len() as u64).expect("less than its length");
            events.swap_remove(at);
        }
        for (tenant, event) in events {
            let answer = caller.get(&format!("/v1/deliveries?tenant=t{tenant}&event={event}&limit=250")).await;
            let answer = answer.map_err(|_| anyhow::anyhow!("the server does not answer"))?;
            if answer.status != 200 {
                let what = format!("deliveries are not listed by event (answered {})", answer.status);
                evidence.missing.insert("I1 by list", what);
                return Ok(());
            }
            let mut listed = Listed::new();
            let json = answer.json();
            let is_original = |delivery: &&Value| delivery["replay"].is_null();
            for delivery in json["data"].as_array().into_iter().flatten().filter(is_original) {
                *listed.entry(delivery["endpoint"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
            }
            evidence.listed.insert(event, listed);
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.process = None;
        self.postgres = None;
        if std::thread::panicking() {
            eprintln!("the server's last words: {}", self.program.last_words());
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// One that is free now, and is ours through all restarts.
pub(crate) fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Far enough from then, and near enough to be taken.
fn in_the_middle_of_next_month(now: &str) -> anyhow::Result<String> {
    let (year, month): (u32, u32) = (now.get(..4).context("a year")?.parse()?, now.get(5..7).context("a month")?.parse()?);
    Ok(format!("{:04}-{:02}-15T00:00:00Z", year + month / 12, month % 12 + 1))
}

fn replay_end(replay: &Value) -> ReplayEnd {
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX / 4);
    ReplayEnd {
        id: replay["id"].as_str().unwrap_or_default().into(),
        state: replay["state"].as_str().unwrap_or_default().to_owned(),
        matched: number(&replay["matched"]),
        created: number(&replay["created"]),
        skipped: replay["skipped"].as_object().into_iter().flat_map(|reasons| reasons.values()).map(number).sum(),
        remaining: number(&replay["remaining"]),
    }
}

/// Asks for something that has to be granted.
async fn asked(caller: &mut Caller, path: &str, body: &Value, status: u16) -> anyhow::Result<Value> {
    let answer = caller.post(path, body).await.map_err(|_| anyhow::anyhow!("no answer to {path}"))?;
    if answer.status != status {
        bail!("{path} answered {}: {}", answer.status, answer.json());
    }
    Ok(answer.json())
}
