//! I43: what is forbidden is not dialled, whatever spelling it comes in.

use posthaste_sender::{Client, Options, Policy};
use tokio::net::{TcpListener, TcpStream};

use crate::receiver::{LONG, OK, answering, client, options, post, word};

#[tokio::test]
async fn i43_an_address_that_is_not_allowed_is_not_dialled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = Client::new(&Options { policy: Policy { allow_http: true, ..Policy::default() }, ..options() }).unwrap();
    for host in ["127.0.0.1", "localhost", "x.localhost", "[::ffff:127.0.0.1]", "[::1]", "[::7f00:1]", "0.0.0.0", "[::]"] {
        let posted = post(&client, &format!("http://{host}:{port}/"), LONG).await;
        assert_eq!(word(posted.outcome), "blocked", "{host}");
        assert_eq!((posted.timings.connect, posted.preview), (None, None));
    }
    // Whoever is first at the door is this test itself, so nobody came before.
    let own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (_, first) = listener.accept().await.unwrap();
    assert_eq!(first, own.local_addr().unwrap());
}

#[tokio::test]
async fn plain_http_and_strange_ports_are_refused_with_the_rule() {
    let strict = Client::new(&Options { policy: Policy { allow_http: false, ..client().policy().as_ref().clone() }, ..options() });
    let receiver = answering(OK).await;
    let posted = post(&strict.unwrap(), &receiver.url(), LONG).await;
    assert_eq!(word(posted.outcome), "blocked");
    assert!(posted.error.unwrap().contains("https://"));
    let posted = post(&client(), "http://127.0.0.1:6379/", LONG).await;
    assert_eq!(word(posted.outcome), "blocked");
    assert!(posted.error.unwrap().contains("6379"));
    assert_eq!(receiver.connections(), 0);
}
