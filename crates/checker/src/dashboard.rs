//! The dashboard and the alert rules against a real Prometheus that watches a real server with traffic: every query has to
//! return something, and every rule has to be one that Prometheus can evaluate.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::world::{World, free_port};

/// Everything is there after a few looks; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub struct Report {
    pub queries: usize,
    pub rules: usize,
    /// What returned nothing, or was refused.
    pub failed: Vec<String>,
}

pub async fn run(binary: &Path, seed: u64, dashboard: &Path, rules: &Path) -> anyhow::Result<Report> {
    let queries = queries(&serde_json::from_slice(&std::fs::read(dashboard)?)?);
    if queries.is_empty() {
        bail!("{} has no queries", dashboard.display());
    }
    let mut world = World::new(binary, seed).await?;
    world.program.set("--retry-max-attempts", "3");
    // Some is shown only where there is an outbox.
    let application = posthaste_testpg::Server::start();
    install_outbox(binary, &application)?;
    world.program.set("--outbox", &application.url());
    world.start(&[]).await?;
    application.psql("SELECT posthaste_publish('order.made', '{}', 't0') FROM generate_series(1, 100)");
    world.furnish().await?;
    world.furnish_holds().await?;
    let prometheus = Prometheus::start(&world, rules)?;
    let publishing = world.publish(100);
    send_again(&mut world).await?;
    let mut caller = Caller::new(prometheus.address, "");
    let (mut waiting, deadline) = (queries.clone(), Instant::now() + PATIENCE);
    // Traffic goes on until every query has had its answer once.
    while !waiting.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut left = Vec::new();
        for query in waiting {
            if !returns_data(&mut caller, &query).await {
                left.push(query);
            }
        }
        waiting = left;
    }
    publishing.stop().await;
    let mut failed: Vec<String> = waiting.into_iter().map(|query| format!("returns nothing: {query}")).collect();
    let (rules, unwell) = rules_of(&mut caller).await?;
    failed.extend(unwell);
    drop(prometheus);
    world.kill()?;
    Ok(Report { queries: queries.len(), rules, failed })
}

fn install_outbox(binary: &Path, application: &posthaste_testpg::Server) -> anyhow::Result<()> {
    let installed = Command::new(binary).args(["outbox", "install", "--database-url", &application.url()]).output()?;
    if !installed.status.success() {
        bail!("the outbox cannot be installed: {}", String::from_utf8_lossy(&installed.stderr));
    }
    Ok(())
}

/// Some that died are sent again, so that this is counted, too.
async fn send_again(world: &mut World) -> anyhow::Result<()> {
    let mut caller = world.caller();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let dead = caller.get("/v1/dead-letters?tenant=t0&limit=1").await.map_err(|_| anyhow::anyhow!("no answer"))?.json();
        if let Some(id) = dead["data"][0]["id"].as_str() {
            let _ = caller.post(&format!("/v1/dead-letters/{id}/retry"), &json!({})).await;
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("nothing has died, so that there is nothing to show of it");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Every `expr`, wherever it is.
fn queries(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("expr").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(queries)).collect()
        }
        Value::Array(items) => items.iter().flat_map(queries).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

async fn returns_data(caller: &mut Caller, query: &str) -> bool {
    let escaped = query.bytes().fold(String::new(), |escaped, byte| format!("{escaped}%{byte:02X}"));
    let Ok(answer) = caller.get(&format!("/api/v1/query?query={escaped}")).await else { return false };
    let json = answer.json();
    let is_number = |sample: &Value| sample["value"][1].as_str().is_some_and(|value| value != "NaN");
    json["status"] == "success" && json["data"]["result"].as_array().is_some_and(|samples| samples.iter().any(is_number))
}

/// How many there are, and what is wrong with those that cannot be evaluated.
async fn rules_of(caller: &mut Caller) -> anyhow::Result<(usize, Vec<String>)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = caller.get("/api/v1/rules").await.map_err(|_| anyhow::anyhow!("Prometheus does not answer"))?.json();
        let groups = answer["data"]["groups"].as_array().context("groups of rules")?.clone();
        let rules: Vec<Value> = groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect();
        // One that was not evaluated yet is neither well nor unwell.
        let is_known = !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown");
        if is_known || Instant::now() > deadline {
            let unwell = rules.iter().filter(|rule| rule["health"] != "ok");
            let told = unwell.map(|rule| format!("a rule cannot be evaluated: {} {}", rule["name"], rule["lastError"]));
            return Ok((rules.len(), told.collect()));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// One of our own, gone with its data at the end.
struct Prometheus {
    process: Child,
    address: std::net::SocketAddr,
    directory: PathBuf,
}

impl Prometheus {
    fn start(world: &World, rules: &Path) -> anyhow::Result<Prometheus> {
        let directory = std::env::temp_dir().join(format!("posthaste-prometheus-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&directory)?;
        let config = directory.join("prometheus.yml");
        let rules = rules.canonicalize().with_context(|| rules.display().to_string())?;
        let settings = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "posthaste", "static_configs": [{"targets": [world.program.listen.to_string()]}]}],
        });
        // What is JSON is YAML.
        std::fs::write(&config, settings.to_string())?;
        let address = free_port()?;
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start prometheus: install Debian's package prometheus")?;
        Ok(Prometheus { process, address, directory })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_found_wherever_they_are() {
        let dashboard =
            json!({"panels": [{"targets": [{"expr": "a"}, {"expr": "b"}]}, {"panels": [{"targets": [{"expr": "c"}]}]}]});
        assert_eq!(queries(&dashboard), ["a", "b", "c"]);
    }
}
