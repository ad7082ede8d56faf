//! `v1a` and the timestamp-hex style against the crypto library of Node.js, which shares no code with ours; and the
//! verifiers of the guide against what we sign.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use posthaste_signing::{HexSecret, Key, PublicKey, Received, Secret, SigningKey, TOLERANCE, standard, timestamp_hex};

const NOW: i64 = 1_800_000_000;

/// Runs a program with this on its standard input; answers its output.
fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} does not run, install its package: {error}"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{program} failed");
    String::from_utf8(output.stdout).expect("it writes UTF-8")
}

fn node(script: &str, input: &str) -> String {
    run("node", &["-e", script], input)
}

fn bodies() -> impl Iterator<Item = (u8, String)> {
    (0..50u8).map(|n| (n, format!("{{\"n\": {n}, \"text\": \"{}\"}}", "Grüße 😀 ".repeat(usize::from(n)))))
}

#[test]
fn node_verifies_what_we_sign_with_ed25519() {
    let script = r"
        const crypto = require('crypto');
        for (const line of require('fs').readFileSync(0, 'utf8').trim().split('\n')) {
            const { key, header, content } = JSON.parse(line);
            const x = Buffer.from(key.replace('whpk_', ''), 'base64').toString('base64url');
            const publicKey = crypto.createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
            const signature = Buffer.from(header.replace('v1a,', ''), 'base64');
            console.log(crypto.verify(null, Buffer.from(content), publicKey, signature));
            console.log(crypto.verify(null, Buffer.from(content + ' '), publicKey, signature));
        }";
    let mut input = String::new();
    for (n, body) in bodies() {
        let key = SigningKey::from_random([n; 32]);
        let header = standard::sign(&[Key::Signing(&key)], "evt_1", NOW, body.as_bytes());
        let content = format!("evt_1.{NOW}.{body}").replace('\\', "\\\\").replace('"', "\\\"");
        let key = key.public_key();
        writeln!(input, "{{\"key\": \"{key}\", \"header\": \"{header}\", \"content\": \"{content}\"}}").unwrap();
    }
    assert_eq!(node(script, &input), "true\nfalse\n".repeat(50));
}

#[test]
fn we_verify_what_node_signs_with_ed25519() {
    let script = r"
        const crypto = require('crypto');
        const { publicKey, privateKey } = crypto.generateKeyPairSync('ed25519');
        console.log('whpk_' + Buffer.from(publicKey.export({ format: 'jwk' }).x, 'base64url').toString('base64'));
        console.log('whsk_' + Buffer.from(privateKey.export({ format: 'jwk' }).d, 'base64url').toString('base64'));
        const content = require('fs').readFileSync(0);
        console.log('v1a,' + crypto.sign(null, content, privateKey).toString('base64'));";
    for (_, body) in bodies().take(5) {
        let output = node(script, &format!("evt_1.{NOW}.{body}"));
        let [public, private, header] = output.lines().collect::<Vec<_>>()[..] else { panic!("three lines: {output}") };
        let public = PublicKey::parse(public).unwrap();
        let private = SigningKey::parse(private).unwrap();
        assert_eq!(private.public_key(), public);
        assert_eq!(standard::sign(&[Key::Signing(&private)], "evt_1", NOW, body.as_bytes()), header, "Ed25519 is deterministic");
        let timestamp = NOW.to_string();
        let received = Received { timestamp: &timestamp, signature: header, body: body.as_bytes() };
        assert_eq!(standard::verify_public("evt_1", &received, NOW, TOLERANCE, &[public]), Ok(()));
    }
}

#[test]
fn node_computes_the_same_timestamp_hex_signature() {
    let script = r"
        const crypto = require('crypto');
        for (const line of require('fs').readFileSync(0, 'utf8').trim().split('\n')) {
            const digest = crypto.createHmac('sha256', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw').update(`1800000000.${line}`).digest('hex');
            console.log(`v1=${digest}`);
        }";
    let input: String = bodies().map(|(_, body)| body + "\n").collect();
    let secret = HexSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let ours: String =
        bodies().map(|(_, body)| timestamp_hex::sign(std::slice::from_ref(&secret), "v1=", NOW, body.as_bytes()) + "\n").collect();
    assert_eq!(node(script, &input), ours);
}

/// The first block of code in this language on the guide's page.
fn example(language: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/verifying-signatures.md")).unwrap();
    let (_, code) = page.split_once(&format!("```{language}\n")).expect("the page has an example");
    code.split_once("```").expect("the example ends").0.to_owned()
}

/// For a receiver's verifier: signature, body, secret, now; and whether it should accept that.
type Case = (String, String, String, i64, bool);

fn cases() -> Vec<Case> {
    let (old, new) = (Secret::from_random([1; 32]), Secret::from_random([2; 32]));
    let body = "{\"text\": \"Grüße\"}";
    let one = standard::sign(&[Key::Shared(&old)], "evt_1", NOW, body.as_bytes());
    let both = standard::sign(&[Key::Shared(&new), Key::Shared(&old)], "evt_1", NOW, body.as_bytes());
    let case = |signature: &str, body: &str, secret: &Secret, now: i64, good: bool| {
        (signature.to_owned(), body.to_owned(), secret.reveal().to_owned(), now, good)
    };
    vec![
        case(&one, body, &old, NOW, true),
        case(&both, body, &old, NOW, true),
        case(&both, body, &new, NOW, true),
        case(&one, body, &old, NOW + 300, true),
        case(&one, body, &old, NOW + 301, false),
        case(&one, body, &old, NOW - 301, false),
        case(&one, body, &new, NOW, false),
        case(&one, &body.replace('ü', "u"), &old, NOW, false),
        case("v1,", body, &old, NOW, false),
        case("v2,AAAA", body, &old, NOW, false),
    ]
}

/// One line a case: signature, body, secret, now.
fn lines() -> String {
    let line = |(signature, body, secret, now, _): &Case| format!("{signature}\t{body}\t{secret}\t{now}\n");
    cases().iter().map(line).collect::<Vec<String>>().concat()
}

fn verdicts() -> String {
    cases().iter().map(|(.., good)| if *good { "evt_1\n" } else { "refused\n" }).collect()
}

#[test]
fn the_guides_verifier_for_node_accepts_what_we_sign_and_nothing_else() {
    let driver = r"
        import { readFileSync } from 'node:fs';
        for (const line of readFileSync(0, 'utf8').trim().split('\n')) {
            const [signature, body, secret, now] = line.split('\t');
            const headers = { 'webhook-id': 'evt_1', 'webhook-timestamp': '1800000000', 'webhook-signature': signature };
            try { console.log(verify(headers, Buffer.from(body), [secret], Number(now))); } catch { console.log('refused'); }
        }";
    let script = example("js") + driver;
    assert_eq!(run("node", &["--input-type=module", "-e", &script], &lines()), verdicts());
}

#[test]
fn the_guides_verifier_for_python_accepts_what_we_sign_and_nothing_else() {
    let driver = "
import sys
for line in sys.stdin.buffer.read().decode().strip().split('\\n'):
    signature, body, secret, now = line.split('\\t')
    headers = {'webhook-id': 'evt_1', 'webhook-timestamp': '1800000000', 'webhook-signature': signature}
    try:
        print(verify(headers, body.encode(), [secret], int(now)))
    except ValueError:
        print('refused')
";
    assert_eq!(run("python3", &["-c", &(example("python") + driver)], &lines()), verdicts());
}
