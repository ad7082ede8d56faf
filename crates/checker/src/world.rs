//! A server, its receivers and its publishers, in a directory of their own.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::draw::Draw;
use crate::evidence::{Clock, DeliveryState, Endpoint, Evidence, Hit, Listed, Moment, Outcome, Pause, RateLimit};
use crate::publisher::{Desk, Load, Publishing};
use crate::receiver::{Mood, Receiver};
use crate::server::{Process, Program};

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

#[derive(Debug)]
pub struct World {
    pub clock: Clock,
    pub seed: u64,
    pub program: Program,
    pub receiver: Arc<Receiver>,
    pub desk: Arc<Desk>,
    process: Option<Process>,
    endpoints: Vec<Endpoint>,
    kills: Vec<Moment>,
    shares: Vec<u64>,
    paused_from: Option<Moment>,
    evidence: Evidence,
    directory: PathBuf,
}

impl World {
    /// Everything but the server itself, which is not started yet.
    pub async fn new(binary: &Path, seed: u64) -> anyhow::Result<World> {
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
        let program = Program {
            binary: binary.to_owned(),
            data_dir: directory.join("data"),
            listen: free_port()?,
            admin_key: format!("phk_checker_{:032x}", rand::random::<u128>()),
            flags,
            log: directory.join("log"),
        };
        let evidence = Evidence { max_attempts: MAX_ATTEMPTS, ..Evidence::default() };
        let desk = Desk::new(clock);
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
            evidence,
            directory,
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
        for mood in [Mood::Healthy, Mood::Slow, Mood::Flaky, Mood::Picky] {
            self.make_endpoint(0, mood, None).await?;
        }
        self.make_endpoint(1, Mood::Healthy, Some("order.")).await?;
        self.make_endpoint(1, Mood::Healthy, None).await?;
        self.make_endpoint(2, Mood::Going, None).await?;
        self.make_endpoint(2, Mood::Healthy, None).await?;
        self.shares = vec![8, 4, 3];
        self.probe_rate_limits().await?;
        self.probe_pauses().await?;
        self.probe_idempotency_keys().await
    }

    /// One healthy endpoint of one tenant, for worlds that are about something else.
    pub async fn furnish_plainly(&mut self) -> anyhow::Result<()> {
        self.shares = vec![1];
        self.make_endpoint(0, Mood::Healthy, None).await
    }

    /// Endpoints at which seven events wait each, for reasons that do not go away: quiet hours, a rate limit, a pause and
    /// `deliver_at`. Two of the last are called off, and one of the second leaves at once. Nobody is owed these.
    pub async fn furnish_holds(&mut self) -> anyhow::Result<()> {
        let mut caller = self.caller();
        let url = self.receiver.url(self.receiver.add(Mood::Healthy));
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
    pub async fn make_endpoint(&mut self, tenant: u32, mood: Mood, wants: Option<&'static str>) -> anyhow::Result<()> {
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
        mood: Mood,
        wants: Option<&'static str>,
        mut body: Value,
        rate_limit: Option<RateLimit>,
    ) -> anyhow::Result<Option<Value>> {
        let place = self.receiver.add(mood);
        body["url"] = self.receiver.url(place).into();
        let answer = self.caller().post("/v1/endpoints", &body).await;
        let never = Moment::MAX;
        let mut endpoint = Endpoint { tenant, wants, id: "".into(), made: never, is_doomed: mood == Mood::Going, rate_limit };
        let mut refusal = None;
        match answer {
            Ok(answered) if answered.status == 201 => {
                let json = answered.json();
                self.receiver.set_secret(place, json["secret"].as_str().context("a new endpoint shows its secret")?);
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
        match self.try_endpoint(3, Mood::Healthy, None, body, Some(limit)).await? {
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
            has_idempotency_keys: !self.evidence.missing.contains_key("I18") && self.shares.len() > 1,
            has_bad_ones: self.shares.len() > 1,
            filler_bytes: 300,
        }
    }

    pub fn publish(&self, rate: u64) -> Publishing {
        self.desk.start(&self.load(rate))
    }

    /// How many deliveries are owed and have not come to an end.
    pub fn owed(&self) -> usize {
        let publishes = self.desk.publishes();
        let mut owed = HashSet::new();
        for publish in publishes.iter().filter(|publish| matches!(publish.outcome, Outcome::Ok { .. })) {
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
            for delivery in answer.json()["data"].as_array().into_iter().flatten() {
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

/// Asks for something that has to be granted.
async fn asked(caller: &mut Caller, path: &str, body: &Value, status: u16) -> anyhow::Result<Value> {
    let answer = caller.post(path, body).await.map_err(|_| anyhow::anyhow!("no answer to {path}"))?;
    if answer.status != status {
        bail!("{path} answered {}: {}", answer.status, answer.json());
    }
    Ok(answer.json())
}
