//! F1, in small: the same course as `cargo xtask crash`, with the program that the other tests run.

use std::path::Path;

use posthaste_checker::crash::{self, Course};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_kills_under_load_lose_nothing_and_invent_nothing() {
    let course = Course { seed: 4711, cycles: 8, rate: 200 };
    let report = crash::run(Path::new(env!("CARGO_BIN_EXE_posthaste")), &course, |_| {}).await.unwrap();
    println!("{}", report.numbers());
    let shown: Vec<String> = report.verdicts.iter().map(ToString::to_string).collect();
    assert!(!report.is_broken(), "{}\n{}", report.numbers(), shown.join("\n"));
    assert!(report.evidence.hits.len() > 50, "something was going on");
}
