//! Notifications by mail. A mail server that is broken, slow or away holds up nothing: mails wait in a bounded number beside
//! everything else, are tried a few times, and then given up with a line in the log.

use std::sync::Arc;
use std::time::Duration;

use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use tokio::sync::Semaphore;

use crate::mail_server::MailServer;

/// Mails that are being sent or wait to be tried again. With a server that is away, what comes beyond is dropped and logged.
const WAITING_MAX: usize = 1_000;
/// Connections to the mail server.
const AT_ONCE_MAX: usize = 4;
/// Between the tries.
const DELAYS: [Duration; 4] = [Duration::from_secs(1), Duration::from_secs(15), Duration::from_mins(2), Duration::from_mins(10)];

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mailer {
    server: MailServer,
    from: Mailbox,
    waiting: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
#[error("the address to send from is not one")]
pub struct FromError;

/// Whether mails can go there, or come from there.
pub fn is_address(text: &str) -> bool {
    text.parse::<Mailbox>().is_ok()
}

impl Mailer {
    pub fn new(server: MailServer, from: &str) -> Result<Mailer, FromError> {
        Ok(Mailer {
            server,
            from: from.parse().map_err(|_| FromError)?,
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            at_once: Arc::new(Semaphore::new(AT_ONCE_MAX)),
        })
    }

    /// One mail to each, so that nobody sees who else gets it and one bad address is nobody else's trouble. Comes back at once.
    pub fn send(&self, to: Vec<String>, subject: &str, text: &str) {
        for address in to {
            let mail = self.mail(&address, subject, text);
            let (Some(mail), Ok(place)) = (mail, Arc::clone(&self.waiting).try_acquire_owned()) else {
                tracing::warn!(to = address, subject, "a mail is not sent: its address is not one, or too many wait");
                continue;
            };
            let (mailer, subject) = (self.clone(), subject.to_owned());
            tokio::spawn(async move {
                mailer.try_until_sent(mail, &address, &subject).await;
                drop(place);
            });
        }
    }

    fn mail(&self, to: &str, subject: &str, text: &str) -> Option<Message> {
        Message::builder()
            .from(self.from.clone())
            .to(to.parse().ok()?)
            .subject(subject)
            .header(ContentType::TEXT_PLAIN)
            .body(text.to_owned())
            .ok()
    }

    async fn try_until_sent(&self, mail: Message, to: &str, subject: &str) {
        let mut delays = DELAYS.iter();
        loop {
            let sent = {
                let _permit = self.at_once.acquire().await;
                self.server.deliver(&mail).await
            };
            let Err(error) = sent else { return tracing::debug!(to, subject, "a mail was sent") };
            let delay = if error.is_final() { None } else { delays.next() };
            let Some(delay) = delay else {
                return tracing::error!(to, subject, server = self.server.name(), %error, "a mail is given up");
            };
            tracing::warn!(to, subject, server = self.server.name(), %error, "a mail could not be sent, and is tried again");
            tokio::time::sleep(*delay).await;
        }
    }
}
