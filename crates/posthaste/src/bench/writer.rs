//! What is compared with, too: a bare writer behind the same HTTP server. It takes the same publish requests, makes their bytes safe on
//! disk, many callers in one flush, and answers. No database, no delivery: nobody who keeps a promise can be faster.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::Context;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::oneshot;

use super::part::listen;

/// Written over again and again, as a database does with its log: a file that grows would have to be told to the file system as well.
const FILE_BYTES: usize = 16 * 1024 * 1024;
/// How many callers share a flush at most.
const GROUP_MAX: usize = 1024;

struct PendingWrite {
    body: Bytes,
    is_safe: oneshot::Sender<bool>,
}

pub(super) async fn serve(directory: PathBuf) -> anyhow::Result<String> {
    let file = prepared(&directory)?;
    let (queue, waiting) = mpsc::channel();
    std::thread::spawn(move || write(&file, &waiting));
    let router = axum::Router::new().route("/v1/events", post(publish)).with_state(queue);
    Ok(listen(router).await?.to_string())
}

fn prepared(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join("group-commit");
    let file = File::create(&path).with_context(|| format!("cannot write to {}", directory.display()))?;
    let block = vec![b' '; 1024 * 1024];
    for at in (0..FILE_BYTES).step_by(block.len()) {
        file.write_all_at(&block, at as u64)?;
    }
    file.sync_all()?;
    Ok(file)
}

async fn publish(State(queue): State<mpsc::Sender<PendingWrite>>, body: Bytes) -> StatusCode {
    let (is_safe, answer) = oneshot::channel();
    let is_queued = queue.send(PendingWrite { body, is_safe }).is_ok();
    if is_queued && answer.await.unwrap_or(false) { StatusCode::ACCEPTED } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn write(file: &File, waiting: &mpsc::Receiver<PendingWrite>) {
    let (mut at, mut group, mut bytes): (usize, Vec<PendingWrite>, Vec<u8>) = (0, Vec::new(), Vec::new());
    while let Ok(first) = waiting.recv() {
        group.push(first);
        group.extend(waiting.try_iter().take(GROUP_MAX - 1));
        bytes.clear();
        for one in &group {
            bytes.extend_from_slice(&one.body);
        }
        if at + bytes.len() > FILE_BYTES {
            at = 0;
        }
        let written = file.write_all_at(&bytes, at as u64).and_then(|()| file.sync_data());
        at += bytes.len();
        for one in group.drain(..) {
            let _ = one.is_safe.send(written.is_ok());
        }
    }
}
