//! Mails through a real mail server: encrypted in both ways, with both kinds of login, and what is refused, and what is never said
//! where others can read it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod server;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::Message;
use lettre::message::header::ContentType;
use posthaste_notify::mail::Mailer;
use posthaste_notify::mail_server::{MailError, MailServer as Known, MailServerInfo};

use server::{Encryption, Habits, MailServer};

const LOGIN: (&str, &str) = ("us@example.com", "canary p@ss");
/// As it is written into a URL.
const LOGIN_IN_URL: &str = "us%40example.com:canary%20p%40ss";

fn mail(to: &str) -> Message {
    let mail = Message::builder().from("hooks@example.com".parse().unwrap()).to(to.parse().unwrap());
    mail.subject("An endpoint was disabled").header(ContentType::TEXT_PLAIN).body("See to it.".to_owned()).unwrap()
}

/// The server as a setting names it, believed by its own certificate.
fn known(server: &MailServer, scheme: &str, rest: &str) -> Known {
    let login = format!("{scheme}://{LOGIN_IN_URL}@{}{rest}", server.place());
    Known::parse(&login, server.certificate.as_bytes()).unwrap()
}

/// That nothing of the password was said where others could read it, in any form.
#[track_caller]
fn assert_nothing_leaked(server: &MailServer) {
    let forms = [LOGIN.1.to_owned(), STANDARD.encode(LOGIN.1), STANDARD.encode(format!("\0{}\0{}", LOGIN.0, LOGIN.1))];
    let readable = server.in_the_clear();
    assert!(readable.iter().all(|line| forms.iter().all(|form| !line.contains(form))), "{readable:?}");
    assert!(readable.iter().all(|line| !line.to_ascii_uppercase().starts_with("AUTH")), "{readable:?}");
}

#[tokio::test]
async fn a_mail_arrives_encrypted_either_way_and_logged_in_either_way() {
    for (encryption, scheme, rest) in [
        (Encryption::Offered, "smtp", "?tls=required"),
        (Encryption::Offered, "smtp", "?tls=opportunistic"),
        (Encryption::FromTheStart, "smtps", ""),
    ] {
        for ways in ["PLAIN", "LOGIN", "CRAM-MD5 LOGIN PLAIN"] {
            let server = MailServer::start(Habits { encryption, login: Some(LOGIN), ways, ..Habits::default() });
            let known = known(&server, scheme, rest);
            known.deliver(&mail("people@acme.example")).await.unwrap();
            let mails = server.mails_to("people@acme.example");
            assert!(mails.len() == 1 && mails[0].text.contains("See to it."), "{scheme} {ways}: {mails:?}");
            assert_nothing_leaked(&server);
            let clear = server.in_the_clear();
            assert!(clear.iter().all(|line| line.starts_with("EHLO") || line == "STARTTLS"), "{clear:?}");
            assert_eq!(known.look().await.unwrap(), MailServerInfo { is_encrypted: true, is_logged_in: true });
            assert_eq!(server.mails_to("").len(), 1, "to look is not to send");
        }
    }
}

#[tokio::test]
async fn a_wrong_password_is_said_so_is_not_repeated_and_is_not_tried_again() {
    let (user, _) = LOGIN;
    for (encryption, scheme, rest) in [(Encryption::Offered, "smtp", "?tls=required"), (Encryption::FromTheStart, "smtps", "")] {
        for ways in ["PLAIN", "LOGIN"] {
            let server = MailServer::start(Habits { encryption, login: Some((user, "other")), ways, ..Habits::default() });
            let trouble = known(&server, scheme, rest).deliver(&mail("a@b.example")).await.unwrap_err();
            let words = trouble.to_string();
            assert!(matches!(trouble, MailError::LoginRefused { .. }) && trouble.is_final(), "{trouble:?}");
            assert!(words.contains("does not accept the user and the password: 535 5.7.8 who are you"), "{words}");
            assert!(!words.contains("canary"), "{words}");
            assert!(server.mails_to("").is_empty());
            assert_nothing_leaked(&server);
        }
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_or_that_is_for_another_name_ends_it_before_the_password() {
    for (encryption, scheme, rest) in [
        (Encryption::Offered, "smtp", "?tls=required"),
        (Encryption::Offered, "smtp", "?tls=opportunistic"),
        (Encryption::FromTheStart, "smtps", ""),
    ] {
        let server = MailServer::start(Habits { encryption, login: Some(LOGIN), ..Habits::default() });
        let url = format!("{scheme}://{LOGIN_IN_URL}@{}{rest}", server.place());
        let trouble = Known::parse(&url, b"").unwrap().deliver(&mail("a@b.example")).await.unwrap_err();
        assert!(matches!(trouble, MailError::Tls(_)), "{trouble:?}");
        assert!(trouble.to_string().contains("its issuer is not trusted (extra_roots)"), "{trouble}");
        assert!(!server.has_heard("AUTH") && server.mails_to("").is_empty());

        let server =
            MailServer::start(Habits { encryption, login: Some(LOGIN), certified: "mail.example.com", ..Habits::default() });
        let trouble = known(&server, scheme, rest).look().await.unwrap_err();
        assert!(trouble.to_string().contains("its certificate is for another name"), "{trouble}");
        assert!(!server.has_heard("AUTH"));
    }
}

#[tokio::test]
async fn without_the_encryption_that_is_demanded_neither_a_password_nor_a_mail_goes_out() {
    for rest in ["?tls=required", "?tls=opportunistic"] {
        let server = MailServer::start(Habits { login: Some(LOGIN), ..Habits::default() });
        let trouble = known(&server, "smtp", rest).deliver(&mail("a@b.example")).await.unwrap_err();
        assert!(matches!(trouble, MailError::NoEncryption), "{trouble:?}");
        assert!(trouble.to_string().contains("offers no encryption (STARTTLS)"), "{trouble}");
        assert!(server.mails_to("").is_empty() && !server.has_heard("MAIL"));
        assert_nothing_leaked(&server);

        let server = MailServer::start(Habits { encryption: Encryption::OfferedInVain, login: Some(LOGIN), ..Habits::default() });
        let trouble = known(&server, "smtp", rest).deliver(&mail("a@b.example")).await.unwrap_err();
        assert!(
            matches!(trouble, MailError::Refused { is_final: false, .. }) && trouble.to_string().contains("454"),
            "{trouble:?}"
        );
        assert!(server.mails_to("").is_empty() && !server.has_heard("MAIL"));
        assert_nothing_leaked(&server);
    }
    // Nor does one go out by TLS to a server that has none.
    let server = MailServer::start(Habits { login: Some(LOGIN), ..Habits::default() });
    let trouble = known(&server, "smtps", "").deliver(&mail("a@b.example")).await.unwrap_err();
    assert!(trouble.to_string().contains("does not answer in TLS"), "{trouble}");
    assert_nothing_leaked(&server);
}

#[tokio::test]
async fn what_was_said_before_tls_began_is_not_believed_after_it() {
    let habits = Habits { encryption: Encryption::OfferedWithMore, login: Some(LOGIN), ..Habits::default() };
    let server = MailServer::start(habits);
    let trouble = known(&server, "smtp", "?tls=required").deliver(&mail("a@b.example")).await.unwrap_err();
    assert!(matches!(trouble, MailError::Tls(_)), "{trouble:?}");
    assert!(!server.has_heard("AUTH") && server.mails_to("").is_empty());
}

#[tokio::test]
async fn without_a_password_encryption_is_used_where_it_is_offered_and_a_mail_goes_out_where_not() {
    for (encryption, is_encrypted) in [(Encryption::Offered, true), (Encryption::None, false)] {
        let server = MailServer::start(Habits { encryption, ..Habits::default() });
        let url = format!("smtp://{}?tls=opportunistic", server.place());
        let known = Known::parse(&url, server.certificate.as_bytes()).unwrap();
        assert_eq!(known.look().await.unwrap(), MailServerInfo { is_encrypted, is_logged_in: false });
        known.deliver(&mail("a@b.example")).await.unwrap();
        assert_eq!(server.mails_to("a@b.example").len(), 1);
    }
}

#[tokio::test]
async fn what_else_is_wrong_is_said_in_words() {
    let server = MailServer::start(Habits {
        encryption: Encryption::FromTheStart,
        login: Some(LOGIN),
        ways: "CRAM-MD5",
        ..Habits::default()
    });
    let trouble = known(&server, "smtps", "").look().await.unwrap_err();
    assert!(trouble.to_string().contains("no way to log in that is known here"), "{trouble}");

    let server = MailServer::start(Habits::default());
    let known = Known::parse(&format!("smtp://{}", server.place()), b"").unwrap();
    let trouble = known.deliver(&mail("nobody@b.example")).await.unwrap_err();
    assert!(trouble.is_final() && trouble.to_string() == "it refuses: 550 nobody of that name", "{trouble}");

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let trouble = Known::parse(&format!("smtp://{closed}"), b"").unwrap().look().await.unwrap_err();
    assert!(matches!(trouble, MailError::Unreachable(_)) && trouble.to_string().contains("refused"), "{trouble}");
}

#[tokio::test]
async fn a_mail_server_that_never_says_a_word_is_left_after_a_while() {
    let server = MailServer::start(Habits { is_silent: true, ..Habits::default() });
    let known = Known::parse(&format!("smtp://{}", server.address), b"").unwrap().within(Duration::from_millis(100));
    for trouble in [known.look().await.unwrap_err(), known.deliver(&mail("a@b.example")).await.unwrap_err()] {
        assert!(matches!(trouble, MailError::TooSlow(_)), "{trouble:?}");
    }
}

#[tokio::test]
async fn a_mailer_sends_to_each_by_itself_and_tries_again_what_could_not_be_sent() {
    let server =
        MailServer::start(Habits { encryption: Encryption::FromTheStart, login: Some(LOGIN), sent_away: 1, ..Habits::default() });
    let mailer = Mailer::new(known(&server, "smtps", ""), "hooks@example.com").unwrap();
    mailer.send(vec!["a@b.example".to_owned(), "c@d.example".to_owned()], "Subject", "Text");
    while server.mails_to("a@b.example").is_empty() || server.mails_to("c@d.example").is_empty() {
        tokio::task::yield_now().await;
    }
    assert_nothing_leaked(&server);
    assert_eq!(server.mails_to("").len(), 2);
}
