//! A mail server that speaks as much SMTP as it takes, with TLS and logins, and remembers what it has heard, and whether that was
//! encrypted. Also for the tests of the binary.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// One mail, as it was handed over.
#[derive(Clone, Debug)]
pub(crate) struct Mail {
    pub(crate) to: String,
    pub(crate) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encryption {
    None,
    /// STARTTLS.
    Offered,
    /// STARTTLS, and then there is none.
    OfferedInVain,
    /// STARTTLS, and somebody in between has put words of their own behind the answer.
    OfferedWithMore,
    FromTheStart,
}

/// What it is like.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) encryption: Encryption,
    /// User and password, without which it takes nothing.
    pub(crate) login: Option<(&'static str, &'static str)>,
    /// The ways to log in, as it names them.
    pub(crate) ways: &'static str,
    /// The first so many callers are told to come back.
    pub(crate) sent_away: usize,
    /// Whom its certificate is for.
    pub(crate) certified: &'static str,
    /// It takes calls and never says a word.
    pub(crate) is_silent: bool,
}

impl Default for Habits {
    fn default() -> Habits {
        Habits {
            encryption: Encryption::None,
            login: None,
            ways: "PLAIN LOGIN",
            sent_away: 0,
            certified: "localhost",
            is_silent: false,
        }
    }
}

/// A line that a caller has said.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) is_encrypted: bool,
    pub(crate) line: String,
}

#[derive(Debug)]
pub(crate) struct MailServer {
    pub(crate) address: SocketAddr,
    pub(crate) mails: Arc<Mutex<Vec<Mail>>>,
    pub(crate) heard: Arc<Mutex<Vec<Heard>>>,
    /// Its certificate, in PEM. Whoever trusts it trusts this server.
    pub(crate) certificate: String,
}

impl MailServer {
    pub(crate) fn start(habits: Habits) -> MailServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (certificate, config) = certified(habits.certified);
        let server =
            MailServer { address: listener.local_addr().unwrap(), mails: Arc::default(), heard: Arc::default(), certificate };
        let (mails, heard) = (Arc::clone(&server.mails), Arc::clone(&server.heard));
        std::thread::spawn(move || {
            // Callers who are not spoken to stay connected.
            let mut ignored = Vec::new();
            for (count, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                if count < habits.sent_away {
                    let _ = stream.write_all(b"421 too busy\r\n");
                } else if habits.is_silent {
                    ignored.push(stream);
                } else {
                    let (mails, heard) = (Arc::clone(&mails), Arc::clone(&heard));
                    let (habits, config) = (habits.clone(), Arc::clone(&config));
                    std::thread::spawn(move || Conversation { habits, config, mails, heard }.hold(stream));
                }
            }
        });
        server
    }

    /// By a name that its certificate is for, unless it has another.
    pub(crate) fn place(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    pub(crate) fn mails_to(&self, address: &str) -> Vec<Mail> {
        self.mails.lock().unwrap().iter().filter(|mail| mail.to.contains(address)).cloned().collect()
    }

    pub(crate) fn has_heard(&self, beginning: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|heard| heard.line.to_ascii_uppercase().starts_with(beginning))
    }

    /// Everything that anybody on the way could have read.
    pub(crate) fn in_the_clear(&self) -> Vec<String> {
        self.heard.lock().unwrap().iter().filter(|heard| !heard.is_encrypted).map(|heard| heard.line.clone()).collect()
    }
}

fn certified(name: &str) -> (String, Arc<ServerConfig>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    (cert.pem(), Arc::new(config))
}

struct Conversation {
    habits: Habits,
    config: Arc<ServerConfig>,
    mails: Arc<Mutex<Vec<Mail>>>,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Conversation {
    fn hold(&self, mut stream: TcpStream) {
        if self.habits.encryption == Encryption::FromTheStart {
            let mut encrypted = self.encrypted(stream);
            say(&mut encrypted, "220 test ESMTP");
            self.converse(&mut encrypted, true);
            return;
        }
        say(&mut stream, "220 test ESMTP");
        if self.converse(&mut stream, false) {
            let mut encrypted = self.encrypted(stream);
            self.converse(&mut encrypted, true);
        }
    }

    fn encrypted(&self, stream: TcpStream) -> StreamOwned<ServerConnection, TcpStream> {
        StreamOwned::new(ServerConnection::new(Arc::clone(&self.config)).unwrap(), stream)
    }

    /// Until the end, or until the caller may begin with TLS.
    fn converse(&self, stream: &mut (impl Read + Write), is_encrypted: bool) -> bool {
        let (mut to, mut is_logged_in) = (String::new(), self.habits.login.is_none());
        loop {
            let Some(line) = self.hear(stream, is_encrypted) else { return false };
            let said = line.to_ascii_uppercase();
            if said.starts_with("EHLO") {
                self.present(stream, is_encrypted);
            } else if said == "STARTTLS" && self.habits.encryption == Encryption::Offered {
                say(stream, "220 go on");
                return true;
            } else if said == "STARTTLS" && self.habits.encryption == Encryption::OfferedWithMore {
                say(stream, "220 go on\r\n250 AUTH PLAIN");
                return true;
            } else if said == "STARTTLS" {
                say(stream, "454 TLS not available");
            } else if said.starts_with("AUTH") {
                is_logged_in = self.log_in(stream, &line, is_encrypted);
                say(stream, if is_logged_in { "235 welcome" } else { "535 5.7.8 who are you" });
            } else if said.starts_with("MAIL") && !is_logged_in {
                say(stream, "530 5.7.0 log in first");
            } else if said.starts_with("RCPT") {
                line.clone_into(&mut to);
                say(stream, if said.contains("NOBODY@") { "550 nobody of that name" } else { "250 ok" });
            } else if said == "DATA" {
                say(stream, "354 go on");
                let mut text = String::new();
                while let Some(line) = read_line(stream).filter(|line| line != ".") {
                    text.push_str(&line);
                    text.push_str("\r\n");
                }
                self.mails.lock().unwrap().push(Mail { to: to.clone(), text });
                say(stream, "250 taken");
            } else if said == "QUIT" {
                say(stream, "221 bye");
                return false;
            } else {
                say(stream, "250 ok");
            }
        }
    }

    fn present(&self, stream: &mut impl Write, is_encrypted: bool) {
        let is_offered = !matches!(self.habits.encryption, Encryption::None | Encryption::FromTheStart) && !is_encrypted;
        if is_offered {
            say(stream, "250-STARTTLS");
        }
        // Also in the clear: whoever speaks its password there is at fault by itself.
        if self.habits.login.is_some() {
            say(stream, &format!("250-AUTH {}", self.habits.ways));
        }
        say(stream, "250 8BITMIME");
    }

    fn log_in(&self, stream: &mut (impl Read + Write), line: &str, is_encrypted: bool) -> bool {
        let decoded = |text: &str| String::from_utf8(STANDARD.decode(text).unwrap_or_default()).unwrap_or_default();
        let mut ask = |question: &str| {
            say(stream, &format!("334 {}", STANDARD.encode(question)));
            decoded(&self.hear(stream, is_encrypted).unwrap_or_default())
        };
        let given = match line.split(' ').collect::<Vec<_>>().as_slice() {
            [_, "PLAIN", given] => {
                let given = decoded(given);
                given
                    .strip_prefix('\0')
                    .and_then(|given| given.split_once('\0'))
                    .map(|(user, word)| (user.to_owned(), word.to_owned()))
            }
            [_, "LOGIN"] => Some((ask("Username:"), ask("Password:"))),
            [..] => None,
        };
        given.is_some_and(|(user, password)| self.habits.login == Some((user.as_str(), password.as_str())))
    }

    fn hear(&self, stream: &mut impl Read, is_encrypted: bool) -> Option<String> {
        let line = read_line(stream)?;
        self.heard.lock().unwrap().push(Heard { is_encrypted, line: line.clone() });
        Some(line)
    }
}

fn say(stream: &mut impl Write, line: &str) {
    // Whoever has gone is noticed at the next reading.
    let _ = stream.write_all(format!("{line}\r\n").as_bytes());
    let _ = stream.flush();
}

/// Byte by byte, so that nothing is read that belongs to TLS.
fn read_line(stream: &mut impl Read) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        match byte {
            [b'\n'] => return Some(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()),
            [byte] => line.push(byte),
        }
    }
}
