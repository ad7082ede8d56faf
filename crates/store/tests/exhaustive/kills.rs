//! F1: `kill -9` at any moment loses nothing that was acknowledged.

use std::time::Duration;

use crate::child::{Scene, kill};

/// A number that looks random and is the same every time.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_two_hundred_kills_lose_nothing() {
    let scene = Scene::new("kills");
    let mut total = 0;
    for cycle in 0..200 {
        let before = scene.lines().len();
        let child = scene.start(&[]);
        scene.wait_until("something was acknowledged", |lines| lines.len() > before);
        std::thread::sleep(Duration::from_millis(scattered(cycle) % 60));
        kill(child);
        // Everything that was ever acknowledged, the first and the last cycles; the present one in between.
        if cycle % 50 == 0 || cycle == 199 {
            total = scene.check().await;
        } else {
            scene.check_since(before).await;
        }
    }
    println!("{total} events were acknowledged over 200 kills, and all of them are there");
    assert!(total > 2_000, "{total}");
}
