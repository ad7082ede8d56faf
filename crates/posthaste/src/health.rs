//! `posthaste health`: one question to a server, for the health checks of containers that have no shell and no curl.

use std::process::ExitCode;

use clap::Args;

use crate::client::{Health, Running, escaped};
use crate::settings::{self, Flags};

#[derive(Args)]
pub(crate) struct HealthCheck {
    #[arg(long, value_name = "URL", help = "The server [env: POSTHASTE_URL] [default: the one of this machine]")]
    url: Option<String>,
}

pub(crate) fn run(check: &HealthCheck) -> ExitCode {
    let known = settings::of_client(&Flags::default());
    let url = check.url.clone().filter(|url| !url.is_empty()).or(known.url).unwrap_or(known.local_url);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("posthaste: {error}");
            return ExitCode::FAILURE;
        }
    };
    let trouble = match runtime.block_on(Health::of(&url)) {
        Health::Running(Running { not_ready: None, .. }) => None,
        Health::Running(Running { not_ready: Some(why), .. }) | Health::Strange(why) | Health::Unreachable(why) => Some(why),
    };
    match trouble {
        None => {
            println!("ready: {url}");
            ExitCode::SUCCESS
        }
        Some(why) => {
            eprintln!("posthaste: {url}: {}", escaped(&why));
            ExitCode::FAILURE
        }
    }
}
