//! What this machine does without Posthaste: the forwarder that other measurements stand beside, alone.

use std::net::SocketAddr;
use std::sync::Arc;

use super::sink::Sink;
use super::throughput::{self, Course, Run};
use super::{Report, forwarder, load_runtime};

pub(super) fn run(course: &Course) -> anyhow::Result<Report> {
    let run = measure(course)?;
    let page = format!("{}\n\n{}", course.told(), throughput::table(&[("raw forwarder", &run)]));
    let mut json = throughput::values(&run);
    json["bench"] = "raw".into();
    Ok(Report { page, json })
}

/// On threads of its own, which are gone afterwards.
pub(super) fn measure(course: &Course) -> anyhow::Result<Run> {
    let loading = load_runtime()?;
    let forwarding = tokio::runtime::Builder::new_multi_thread().thread_name("bench-raw").enable_all().build()?;
    let (sink, receiver): (Arc<Sink>, SocketAddr) = loading.block_on(throughput::sink(course))?;
    let server = forwarding.block_on(forwarder::serve(receiver))?;
    let run = loading.block_on(throughput::measure(course, "raw forwarder", server, "no-key", &sink))?;
    forwarding.shutdown_background();
    Ok(run)
}
