//! What a store does in a second, beside a bare program that writes the same rows on one thread; and what a backlog of a
//! million costs. `cargo xtask bench-store` runs it; `--help` tells what can be chosen.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people; what goes wrong ends it")]

mod support {
    pub(crate) mod backlog;
    pub(crate) mod bare;
    pub(crate) mod common;
    pub(crate) mod load;
}

use std::path::PathBuf;

use support::{backlog, bare, load};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    if has("--help") {
        println!("bench [--postgres] [--backlog] [--rows N] [--seconds N] [--callers N] [--rounds N]");
        return;
    }
    let number = |word: &str, default: u64| {
        let place = words.iter().position(|given| given == word);
        place.and_then(|place| words.get(place + 1)).map_or(default, |text| text.parse().expect("a number"))
    };
    let scratch = Scratch::new();
    let database = if has("--postgres") { load::Database::postgres() } else { load::Database::Sqlite(scratch.0.join("data")) };
    if has("--backlog") {
        backlog::run(&database, number("--rows", 1_000_000)).await;
        return;
    }
    let seconds = number("--seconds", 3);
    println!(
        "{}, about 545 bytes of payload, one endpoint, {seconds} s each; publishes and records are durable.\n\
         Ratios are to a bare program with one thread and groups of 64, which is measured before and after each of them.\n",
        database.name()
    );
    println!("{:>34} {:>14} {:>14} {:>14} {:>14}", "", "publishes/s", "bare", "records/s", "bare");
    let only = number("--callers", 0);
    let bare_directory = scratch.0.join("bare");
    let mut before = bare::run(&database, &bare_directory, seconds).await;
    for (callers, batch) in [(1, 1), (8, 1), (64, 1), (512, 1), (1, 100), (8, 100)] {
        if only > 0 && (callers as u64 != only || batch > 1) {
            continue;
        }
        for _ in 0..number("--rounds", 1) {
            let rates = load::run(&database, callers, batch, seconds).await;
            let after = bare::run(&database, &bare_directory, seconds).await;
            let (publishes, records) =
                (f64::midpoint(before.publishes, after.publishes), f64::midpoint(before.records, after.records));
            let name = if batch == 1 { format!("{callers} callers") } else { format!("{callers} callers, batches of {batch}") };
            println!(
                "{name:>34} {:>14.0} {publishes:>14.0} {:>14.0} {records:>14.0}   ratio {:.2} and {:.2}",
                rates.publishes,
                rates.records,
                rates.publishes / publishes,
                rates.records / records
            );
            before = after;
        }
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        // Beside the build, which is on a disk; a temporary directory may be in memory.
        let directory = std::env::current_exe().unwrap().with_file_name(format!("bench-store-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
