//! A proxy between a client and its server that loses connections: all of them, new ones, or exactly the one that commits,
//! before the server has heard of it or after it has answered.
//!
//! It reads enough of PostgreSQL's protocol to know which answer belongs to which request, also when a client sends several
//! without waiting. It knows neither TLS nor `COPY FROM STDIN`.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::port;
use crate::server::url;

/// Longer than any test sends; a greater length means that this is not PostgreSQL's protocol.
const MESSAGE_MAX_BYTES: usize = 256 << 20;

const READ_BYTES: usize = 64 << 10;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Until our port is ours again after [`Proxy::refuse`].
const DEADLINE: Duration = Duration::from_secs(30);

/// When a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never hears of it.
    Before,
    /// The server has done it and has said so, but its answer does not arrive.
    AfterAnswer,
}

/// A port of its own in front of a server's. As long as nobody asks for a fault, it only passes on.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    /// None while it refuses connections.
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Faults {
    server_port: u16,
    is_closing: AtomicBool,
    armed: Mutex<Option<(Trigger, Cut)>>,
    cuts: AtomicUsize,
    connections: Mutex<Vec<Arc<Connection>>>,
}

#[derive(Debug)]
enum Trigger {
    Commit,
    /// In lower case.
    Text(String),
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    exchange: Mutex<Exchange>,
    is_closed: AtomicBool,
}

/// What has been asked and answered on one connection. An answer ends with `ReadyForQuery`, of which there is one for the
/// start of the connection, for each simple query and for each `Sync`.
#[derive(Debug, Default)]
struct Exchange {
    asked: u64,
    answered: u64,
    /// The number of the answer that shall not arrive; nothing is asked after it.
    last: Option<u64>,
    /// Questions for encryption that the server has still to answer, with a single byte.
    encryption: u32,
}

impl Proxy {
    /// In front of the server at this port.
    pub fn start(server_port: u16) -> Proxy {
        let listener = port::listen_anywhere();
        let port = listener.local_addr().expect("it listens somewhere").port();
        let faults = Arc::new(Faults {
            server_port,
            is_closing: AtomicBool::new(false),
            armed: Mutex::new(None),
            cuts: AtomicUsize::new(0),
            connections: Mutex::new(Vec::new()),
        });
        let proxy = Proxy { port, faults, acceptor: Mutex::new(None) };
        *lock(&proxy.acceptor) = Some(proxy.accept(listener));
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Of the database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    pub fn url_of(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// Loses every connection that is open now; new ones are as welcome as before.
    pub fn cut_all(&self) {
        for connection in lock(&self.faults.connections).drain(..) {
            connection.close();
        }
    }

    /// Refuses new connections; those that are open stay.
    pub fn refuse(&self) {
        if let Some(acceptor) = lock(&self.acceptor).take() {
            self.faults.is_closing.store(true, Ordering::SeqCst);
            // Wakes it; if that fails, it has ended already.
            drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
            acceptor.join().expect("the acceptor does not panic");
        }
    }

    /// Takes new connections again, and forgets a cut that has not happened yet.
    pub fn pass(&self) {
        *lock(&self.faults.armed) = None;
        let mut acceptor = lock(&self.acceptor);
        if acceptor.is_none() {
            let started = Instant::now();
            let listener = loop {
                match port::listen(self.port) {
                    Ok(listener) => break listener,
                    Err(error) => assert!(started.elapsed() < DEADLINE, "port {} does not become free: {error}", self.port),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            self.faults.is_closing.store(false, Ordering::SeqCst);
            *acceptor = Some(self.accept(listener));
        }
    }

    /// Loses the connection that next sends a `COMMIT` of its own, or a statement that commits by itself and says so in a comment,
    /// `/* commit */`. For others there is [`Proxy::cut_next_statement`].
    pub fn cut_next_commit(&self, cut: Cut) {
        *lock(&self.faults.armed) = Some((Trigger::Commit, cut));
    }

    /// Loses the connection that next executes a statement with this text in it, in capitals or not.
    pub fn cut_next_statement(&self, text: &str, cut: Cut) {
        *lock(&self.faults.armed) = Some((Trigger::Text(text.to_ascii_lowercase()), cut));
    }

    /// How many commits and statements have lost their connection. A client that has noticed is counted.
    pub fn cuts(&self) -> usize {
        self.faults.cuts.load(Ordering::SeqCst)
    }

    fn accept(&self, listener: TcpListener) -> JoinHandle<()> {
        let faults = Arc::clone(&self.faults);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if faults.is_closing.load(Ordering::SeqCst) {
                    return;
                }
                // A client whose server is down sees its connection closed.
                if let Some(connection) = client.ok().and_then(|client| Connection::open(client, faults.server_port)) {
                    let connection = Arc::new(connection);
                    let mut connections = lock(&faults.connections);
                    connections.retain(|connection| !connection.is_closed.load(Ordering::SeqCst));
                    connections.push(Arc::clone(&connection));
                    drop(connections);
                    let (there, back) = ((Arc::clone(&connection), Arc::clone(&faults)), (connection, Arc::clone(&faults)));
                    std::thread::spawn(move || there.0.pass_requests(&there.1));
                    std::thread::spawn(move || back.0.pass_answers(&back.1));
                }
            }
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.cut_all();
    }
}

impl Faults {
    /// Whether this statement is the one that was waited for. Only once.
    fn strikes(&self, statement: &str) -> Option<Cut> {
        lock(&self.armed).take_if(|(trigger, _)| trigger.matches(statement)).map(|(_, cut)| cut)
    }

    fn cut(&self, connection: &Connection) {
        // Before the client can notice.
        self.cuts.fetch_add(1, Ordering::SeqCst);
        connection.close();
    }
}

impl Trigger {
    fn matches(&self, statements: &str) -> bool {
        match self {
            Trigger::Commit => {
                let says_so = statements.contains("/* commit */");
                says_so
                    || statements.split(';').any(|statement| {
                        let word = statement.split_whitespace().next().unwrap_or_default();
                        word.eq_ignore_ascii_case("commit") || word.eq_ignore_ascii_case("end")
                    })
            }
            Trigger::Text(text) => statements.to_ascii_lowercase().contains(text),
        }
    }
}

impl Connection {
    fn open(client: TcpStream, server_port: u16) -> Option<Connection> {
        // A frozen server takes connections only until its queue is full.
        let server = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, server_port).into(), CONNECT_TIMEOUT).ok()?;
        // A proxy that waits for more to send would make every request slow.
        client.set_nodelay(true).ok()?;
        server.set_nodelay(true).ok()?;
        Some(Connection { client, server, exchange: Mutex::default(), is_closed: AtomicBool::new(false) })
    }

    /// Both sides, and so both threads. What fails here is closed already.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn pass_requests(&self, faults: &Faults) {
        let mut has_started = false;
        let mut statements = Statements::default();
        pump(&self.client, &self.server, |bytes| {
            let length = first_message(bytes, has_started)?;
            let message = &bytes[..length];
            let mut exchange = lock(&self.exchange);
            if exchange.last.is_some_and(|last| exchange.asked >= last) {
                return Ok((length, Step::Drop));
            }
            if !has_started {
                match message.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes) {
                    // SSLRequest and GSSENCRequest.
                    Some(80_877_103 | 80_877_104) => exchange.encryption += 1,
                    // CancelRequest, which is not answered.
                    Some(80_877_102) => {}
                    _ => {
                        has_started = true;
                        exchange.asked += 1;
                    }
                }
                return Ok((length, Step::Pass));
            }
            let kind = message[0];
            let number = exchange.asked + 1;
            if let Some(cut) = statements.executed_by(kind, &message[5..]).and_then(|text| faults.strikes(&text)) {
                match cut {
                    Cut::Before => return Ok((length, Step::Cut)),
                    Cut::AfterAnswer => exchange.last = Some(number),
                }
            }
            // Query, Sync and FunctionCall.
            if matches!(kind, b'Q' | b'S' | b'F') {
                exchange.asked = number;
            }
            Ok((length, Step::Pass))
        })
        .finish(self, faults);
    }

    fn pass_answers(&self, faults: &Faults) {
        pump(&self.server, &self.client, |bytes| {
            let mut exchange = lock(&self.exchange);
            if exchange.encryption > 0 && !bytes.is_empty() {
                exchange.encryption -= 1;
                return Ok((1, Step::Pass));
            }
            let length = first_message(bytes, true)?;
            let is_lost = exchange.last == Some(exchange.answered + 1);
            let is_end = bytes[0] == b'Z';
            exchange.answered += u64::from(is_end);
            let step = match (is_lost, is_end) {
                (true, true) => Step::Cut,
                (true, false) => Step::Drop,
                (false, _) => Step::Pass,
            };
            Ok((length, step))
        })
        .finish(self, faults);
    }
}

/// What a connection has prepared: a statement may be executed long after its text was sent.
#[derive(Debug, Default)]
struct Statements {
    by_name: HashMap<Vec<u8>, String>,
    by_portal: HashMap<Vec<u8>, String>,
}

impl Statements {
    /// The text of the statement that this message executes, if it does.
    fn executed_by(&mut self, kind: u8, body: &[u8]) -> Option<String> {
        let mut strings = body.split(|byte| *byte == 0);
        let first = strings.next().unwrap_or_default().to_vec();
        let second = strings.next().unwrap_or_default();
        match kind {
            // Query.
            b'Q' => Some(String::from_utf8_lossy(&first).into_owned()),
            // Parse: name, text.
            b'P' => {
                self.by_name.insert(first, String::from_utf8_lossy(second).into_owned());
                None
            }
            // Bind: portal, name of the statement.
            b'B' => {
                let text = self.by_name.get(second).cloned().unwrap_or_default();
                self.by_portal.insert(first, text);
                None
            }
            // Execute: portal.
            b'E' => self.by_portal.get(&first).cloned(),
            _ => None,
        }
    }
}

/// What happens to a message.
#[derive(Debug, Clone, Copy)]
enum Step {
    Pass,
    Drop,
    Cut,
}

#[derive(Debug)]
enum Stop {
    /// The message is not complete yet.
    Incomplete,
    /// This is not the protocol that we know.
    Nonsense,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cut,
    Closed,
}

impl End {
    fn finish(self, connection: &Connection, faults: &Faults) {
        match self {
            End::Cut => faults.cut(connection),
            End::Closed => connection.close(),
        }
    }
}

/// Passes on what `judge` lets pass, until one side closes. It is given all bytes that are there, and answers how long the
/// first message is and what happens to it.
fn pump(mut from: &TcpStream, mut to: &TcpStream, mut judge: impl FnMut(&[u8]) -> Result<(usize, Step), Stop>) -> End {
    let mut waiting = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => waiting.extend_from_slice(&buffer[..count]),
            Ok(_) | Err(_) => return End::Closed,
        }
        let mut passed = Vec::new();
        let mut judged = 0;
        let end = loop {
            match judge(&waiting[judged..]) {
                Ok((length, step)) => {
                    let message = &waiting[judged..judged + length];
                    judged += length;
                    match step {
                        Step::Pass => passed.extend_from_slice(message),
                        Step::Drop => {}
                        Step::Cut => break Some(End::Cut),
                    }
                }
                Err(Stop::Incomplete) => break None,
                Err(Stop::Nonsense) => break Some(End::Closed),
            }
        };
        waiting.drain(..judged);
        let written = to.write_all(&passed);
        if let Some(end) = end {
            return end;
        }
        if written.is_err() {
            return End::Closed;
        }
    }
}

/// The length of the first message. It begins with a byte for its kind, except at the start of a connection; then comes its
/// length, which counts itself.
fn first_message(bytes: &[u8], has_kind: bool) -> Result<usize, Stop> {
    let before = usize::from(has_kind);
    let length = bytes.get(before..before + 4).and_then(|length| length.try_into().ok()).ok_or(Stop::Incomplete)?;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| Stop::Nonsense)?;
    if !(4..=MESSAGE_MAX_BYTES).contains(&length) {
        return Err(Stop::Nonsense);
    }
    if bytes.len() < before + length { Err(Stop::Incomplete) } else { Ok(before + length) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_a_statement_that_begins_with_the_word() {
        for commit in ["COMMIT", "commit;", " begin; insert into t values (1); COMMIT AND CHAIN", "END"] {
            assert!(Trigger::Commit.matches(commit), "{commit}");
        }
        for other in ["", "SET synchronous_commit = off", "SELECT 'COMMIT'", "committed", "BEGIN"] {
            assert!(!Trigger::Commit.matches(other), "{other}");
        }
    }

    #[test]
    fn a_message_is_as_long_as_it_says() {
        assert!(matches!(first_message(b"Q\0\0\0\x06ab", true), Ok(7)));
        assert!(matches!(first_message(b"Q\0\0\0\x06abZ\0", true), Ok(7)));
        assert!(matches!(first_message(b"\0\0\0\x08abcd", false), Ok(8)));
        assert!(matches!(first_message(b"Q\0\0\0\x06a", true), Err(Stop::Incomplete)));
        assert!(matches!(first_message(b"Q\0\0", true), Err(Stop::Incomplete)));
        assert!(matches!(first_message(b"Q\0\0\0\x03", true), Err(Stop::Nonsense)));
        assert!(matches!(first_message(b"HTTP/1.1 400", false), Err(Stop::Nonsense)));
    }
}
