//! What every store has to do, whichever database keeps it.
//!
//! Each case is written once and run against both. PostgreSQL is a private server that the test starts and removes.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod backlog;
mod clock;
mod cluster;
mod commands;
mod configuration;
mod delivering;
mod history;
mod housekeeping;
mod numbers;
mod publishing;
mod redeliver;
mod slow_queries;
mod statistics;
mod world;

/// Makes two tests of each case.
#[macro_export]
macro_rules! conform {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::world::World::sqlite(stringify!($case)).await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::world::World::postgres().await).await;
            })*
        }
    };
}
