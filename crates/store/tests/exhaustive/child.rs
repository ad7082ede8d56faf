//! The process that writes until it is killed.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::delivery::{Outcome, State, Timings};
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{AttemptId, EndpointId, EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_store::*;

const DIRECTORY: &str = "POSTHASTE_TEST_DIRECTORY";
const CALLERS: usize = 16;

/// A directory for one test, with the log of what was acknowledged beside the data.
pub(crate) struct Scene {
    pub(crate) directory: PathBuf,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Scene {
        let directory = std::env::temp_dir().join(format!("posthaste-exhaustive-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Scene { directory }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("acknowledged")
    }

    /// Starts the writer, under another program if one is given.
    pub(crate) fn start(&self, under: &[&str]) -> Child {
        let program = std::env::current_exe().unwrap();
        let words = under.iter().map(|word| (*word).to_owned());
        let mut words = words.chain([program.to_str().unwrap().to_owned()]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(["--exact", "child::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIRECTORY, &self.directory)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.directory.join("stderr")).unwrap());
        command.spawn().unwrap()
    }

    /// The lines that are whole: ids that were acknowledged, and `error`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until the log satisfies this.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !is_so(&self.lines()) {
            let stderr = std::fs::read_to_string(self.directory.join("stderr")).unwrap_or_default();
            assert!(Instant::now() < deadline, "waited in vain until {what}; {} lines\n{stderr}", self.lines().len());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Opens the store as the next process would, and looks for everything that was acknowledged.
    pub(crate) async fn check(&self) -> usize {
        self.check_since(0).await
    }

    /// The same for what was noted after so many lines.
    pub(crate) async fn check_since(&self, lines: usize) -> usize {
        let store = Sqlite::open(&self.data(), options()).unwrap();
        let acknowledged: BTreeSet<String> = self.lines().into_iter().skip(lines).filter(|line| line != "error").collect();
        for id in &acknowledged {
            let found = store.event(Some(tenant()), EventId::parse(id).unwrap()).await.unwrap();
            let found = found.unwrap_or_else(|| panic!("{id} was acknowledged and is not there"));
            assert_eq!(found.deliveries.iter().sum::<u64>(), 1, "{id} has its delivery");
            assert!(found.data.is_some());
        }
        store.close().await.unwrap();
        acknowledged.len()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

pub(crate) fn options() -> Options {
    Options::new(Keyring::new(MasterKey::from_base64("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").unwrap(), vec![]))
}

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn audit() -> Audit {
    let text = |text: &str| text.to_owned();
    Audit {
        actor: text("test"),
        address: None,
        action: text("create"),
        subject: text("x"),
        tenant: None,
        before: None,
        after: None,
    }
}

fn event(store: &dyn Store) -> Event {
    let now = store.now();
    Event {
        id: EventId::from_unique(store.unique()),
        tenant: tenant(),
        event_type: EventType::parse("order.paid").unwrap(),
        version: None,
        timestamp: now,
        accepted_at: now,
        data: Data::parse(&format!("{{\"filler\": \"{}\"}}", "x".repeat(500))).unwrap(),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    }
}

/// Not a test: what [`Scene::start`] starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child of other tests"]
async fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    // A test that fails must leave nothing behind that writes for ever.
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::process::exit(1);
    });
    let directory = Path::new(&directory);
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory.join("data"), options()).unwrap());
    let query = EndpointQuery { limit: 1, ..EndpointQuery::default() };
    if store.endpoints(query).await.unwrap().is_empty() {
        let id = EndpointId::from_unique(store.unique());
        let endpoint = Endpoint::new(id, tenant(), "https://example.com/".to_owned(), store.now());
        let new = NewEndpoint { endpoint, secrets: vec![], per_tenant_max: 1, tenant_created_at: None };
        store.configure(Change::CreateEndpoint(Box::new(new)), audit()).await.unwrap().unwrap();
    }
    let node = NodeId(1);
    store.join(node).await.unwrap();
    let epoch = store.claim(node, 256).await.unwrap().unwrap().partitions[0].1;
    let mut feed = store.feed();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let store = Arc::clone(&store);
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("acknowledged")).unwrap();
        tasks.spawn(async move {
            loop {
                let event = event(store.as_ref());
                let id = event.id.to_string();
                let new = NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint: [0; 32], resolved: None };
                // One write each, so that a line is there as a whole or not at all.
                if store.publish(vec![new]).await.is_ok() {
                    log.write_all(format!("{id}\n").as_bytes()).unwrap();
                } else {
                    log.write_all(b"error\n").unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    // Half of it is delivered, so that records share the commits.
    tasks.spawn(async move {
        while let Some(fed) = feed.next().await {
            let records = fed.into_iter().step_by(2).map(|fed| Record {
                partition: fed.partition,
                epoch,
                endpoint: fed.endpoint,
                recorded: DeliveryChange::Attempt {
                    seq: fed.entry.seq,
                    attempt: Box::new(AttemptRecord {
                        id: AttemptId::from_unique(store.unique()),
                        number: 1,
                        outcome: Outcome::Answered { status: 200, retry_after: None },
                        response_time: Duration::from_millis(1),
                        timings: Timings::default(),
                        timeout: Duration::from_secs(10),
                        preview: None,
                        error: None,
                        attempted_at: store.now(),
                        endpoint_version: Some(1),
                    }),
                    state: State::Delivered { at: store.now() },
                },
                lane: None,
                disables_endpoint: None,
            });
            let _ = store.record(records.collect()).await;
        }
    });
    tasks.join_all().await;
}
