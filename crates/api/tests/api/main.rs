//! The API as a caller sees it, on SQLite in a directory of its own; what must not differ between databases also on
//! PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

/// Makes two tests of a case: the answers are the same on both databases.
macro_rules! on_both_databases {
    ($($case:ident)*) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(crate::server::Server::new(stringify!($case))).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(crate::server::Server::on_postgres().await).await;
            })*
        }
    };
}

mod attention;
mod backlog;
mod batch;
mod canaries;
mod conventions;
mod credentials;
mod dashboard;
mod deliveries;
mod documents;
mod endpoints;
mod events;
mod generated;
mod hanging;
mod hostile;
mod metrics;
mod owner;
mod portal;
mod portal_pages;
mod replays;
mod server;
mod sessions;
mod smaller;
mod stream;
mod tenancy;
mod tenants;
mod versions;
