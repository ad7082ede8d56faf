//! How a server is, as anybody may ask it.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::failure::{Failure, Kind};
use super::http::{Address, Answer, Request, Server};
use super::operations::{IS_ALIVE, IS_READY, Operation, READ_DOCUMENT};

/// Ready is answered within two seconds, or not at all.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What is to be known of a server from outside.
#[derive(Debug)]
pub(crate) enum Health {
    /// Nobody is there.
    Unreachable(String),
    /// Somebody is, and it is not a Posthaste that is well.
    Strange(String),
    Running(Running),
}

#[derive(Debug)]
pub(crate) struct Running {
    /// Why it takes no traffic, if so.
    pub(crate) not_ready: Option<String>,
    /// `None` of a process without the API.
    pub(crate) version: Option<String>,
}

impl Health {
    pub(crate) async fn of(url: &str) -> Health {
        let server = Address::parse(url).and_then(Server::without_key);
        let mut server = match server {
            Ok(server) => server,
            Err(failure) => return Health::Strange(failure.first_line()),
        };
        match asked(&mut server, &IS_ALIVE).await {
            Ok(answer) if says_ok(&answer.body) => {}
            Ok(_) => return Health::Strange("what answers there is not Posthaste".to_owned()),
            Err(failure) if failure.kind == Kind::Unreachable => return Health::Unreachable(failure.first_line()),
            Err(failure) => return Health::Strange(failure.first_line()),
        }
        let not_ready = match asked(&mut server, &IS_READY).await {
            Ok(_) => None,
            // A process that only delivers does not have it.
            Err(failure) if failure.kind == Kind::NotFound => None,
            Err(failure) => Some(failure.first_line()),
        };
        let document = asked(&mut server, &READ_DOCUMENT).await.ok();
        let document = document.and_then(|answer| serde_json::from_slice::<Value>(&answer.body).ok());
        let version = document.and_then(|document| document["info"]["version"].as_str().map(str::to_owned));
        Health::Running(Running { not_ready, version })
    }
}

async fn asked(server: &mut Server, operation: &'static Operation) -> Result<Answer, Failure> {
    let answered = timeout(ANSWER_MAX, server.ask(&Request::to(operation))).await;
    answered.unwrap_or_else(|_| Err(Failure::new(Kind::Server, "there is no answer within 5 s")))
}

/// As a server with the API says it, and as one without.
fn says_ok(body: &[u8]) -> bool {
    body == b"ok" || serde_json::from_slice::<Value>(body).is_ok_and(|said| said["status"] == "ok")
}
