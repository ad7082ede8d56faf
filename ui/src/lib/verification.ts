// Code that verifies a signature, in the languages that receivers are written in, with the secret filled in. The rules are those of
// docs/guide/verifying-signatures.md: the body as bytes, five minutes of tolerance, any of the signatures, in constant time.
// `e2e/verification.test.mjs` runs what can be run here against the guide's test vector.

export interface Snippet {
  id: string;
  name: string;
  code: string;
}

const node = (secret: string) => `import { createHmac, timingSafeEqual } from "node:crypto";

const SECRET = "${secret}";

// headers: lower-case names; body: a Buffer with the bytes as they came. Answers the event's id, or throws.
export function verify(headers, body, now = Date.now() / 1000) {
  const id = headers["webhook-id"] ?? "";
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!/^[0-9]+$/.test(timestamp) || Math.abs(now - Number(timestamp)) > 300) throw new Error("too old, or no timestamp");
  const key = Buffer.from(SECRET.slice("whsec_".length), "base64");
  const content = Buffer.concat([Buffer.from(\`\${id}.\${timestamp}.\`), body]);
  const expected = Buffer.from("v1," + createHmac("sha256", key).update(content).digest("base64"));
  const given = (headers["webhook-signature"] ?? "").split(" ").map((one) => Buffer.from(one));
  if (!given.some((one) => one.length === expected.length && timingSafeEqual(one, expected))) throw new Error("no signature matches");
  return id;
}
`;

const python = (secret: string) => `import base64, hashlib, hmac, time

SECRET = "${secret}"


def verify(headers, body, now=None):
    """headers: lower-case names; body: bytes as they came. Answers the event's id, or raises ValueError."""
    event_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    now = time.time() if now is None else now
    if not (timestamp.isascii() and timestamp.isdigit()) or abs(now - int(timestamp)) > 300:
        raise ValueError("too old, or no timestamp")
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    content = f"{event_id}.{timestamp}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest())
    given = headers.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(expected, one.encode()) for one in given):
        raise ValueError("no signature matches")
    return event_id
`;

const go = (secret: string) => `package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const secret = "${secret}"

// Verify answers the event's id. The body is the bytes as they came.
func Verify(header http.Header, body []byte, now time.Time) (string, error) {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || now.Unix()-seconds > 300 || seconds-now.Unix() > 300 {
		return "", errors.New("too old, or no timestamp")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	expected := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for _, given := range strings.Split(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(given), expected) {
			return id, nil
		}
	}
	return "", errors.New("no signature matches")
}
`;

const ruby = (secret: string) => `require "base64"
require "openssl"

SECRET = "${secret}"

# headers: lower-case names; body: the bytes as they came. Answers the event's id, or raises.
def verify(headers, body, now = Time.now.to_i)
  id, timestamp = headers["webhook-id"].to_s, headers["webhook-timestamp"].to_s
  raise "too old, or no timestamp" unless timestamp.match?(/\\A[0-9]+\\z/) && (now - timestamp.to_i).abs <= 300
  key = Base64.strict_decode64(SECRET.delete_prefix("whsec_"))
  content = "#{id}.#{timestamp}.".b + body.b
  expected = "v1," + Base64.strict_encode64(OpenSSL::HMAC.digest("SHA256", key, content))
  given = headers["webhook-signature"].to_s.split(" ")
  raise "no signature matches" unless given.any? { |one| OpenSSL.secure_compare(one, expected) }
  id
end
`;

const php = (secret: string) => `<?php

const SECRET = '${secret}';

// $headers: lower-case names; $body: file_get_contents('php://input'). Answers the event's id, or throws.
function verify(array $headers, string $body, ?int $now = null): string
{
    $id = $headers['webhook-id'] ?? '';
    $timestamp = $headers['webhook-timestamp'] ?? '';
    if (!preg_match('/^[0-9]+$/D', $timestamp) || abs(($now ?? time()) - (int) $timestamp) > 300) {
        throw new RuntimeException('too old, or no timestamp');
    }
    $key = base64_decode(substr(SECRET, strlen('whsec_')));
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
    foreach (explode(' ', $headers['webhook-signature'] ?? '') as $given) {
        if (hash_equals($expected, $given)) {
            return $id;
        }
    }
    throw new RuntimeException('no signature matches');
}
`;

const java = (secret: string) => `import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

final class Webhooks {
    private static final String SECRET = "${secret}";

    /** The body is the bytes as they came, now is in seconds. Answers whether the request is genuine. */
    static boolean verify(String id, String timestamp, String signatures, byte[] body, long now) throws GeneralSecurityException {
        if (id == null || timestamp == null || signatures == null || !timestamp.matches("[0-9]{1,12}")
                || Math.abs(now - Long.parseLong(timestamp)) > 300) {
            return false;
        }
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(Base64.getDecoder().decode(SECRET.substring("whsec_".length())), "HmacSHA256"));
        mac.update((id + "." + timestamp + ".").getBytes(StandardCharsets.UTF_8));
        byte[] expected = ("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body))).getBytes(StandardCharsets.UTF_8);
        boolean matches = false;
        for (String given : signatures.split(" ")) {
            matches |= MessageDigest.isEqual(given.getBytes(StandardCharsets.UTF_8), expected);
        }
        return matches;
    }
}
`;

const csharp = (secret: string) => `using System.Security.Cryptography;
using System.Text;

static class Webhooks
{
    const string Secret = "${secret}";

    // The body is the bytes as they came, now is in seconds. Answers whether the request is genuine.
    public static bool Verify(string id, string timestamp, string signatures, byte[] body, long now)
    {
        if (!long.TryParse(timestamp, out var seconds) || Math.Abs(now - seconds) > 300) return false;
        var key = Convert.FromBase64String(Secret["whsec_".Length..]);
        byte[] content = [.. Encoding.UTF8.GetBytes($"{id}.{timestamp}."), .. body];
        var expected = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(HMACSHA256.HashData(key, content)));
        return signatures.Split(' ').Any(given => CryptographicOperations.FixedTimeEquals(Encoding.UTF8.GetBytes(given), expected));
    }
}
`;

const rust = (secret: string) => `use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use sha2::Sha256;

const SECRET: &str = "${secret}";

/// The body is the bytes as they came, \`now\` is in seconds. Answers whether the request is genuine.
pub fn verify(id: &str, timestamp: &str, signatures: &str, body: &[u8], now: u64) -> bool {
    let Ok(seconds) = timestamp.parse::<u64>() else { return false };
    if now.abs_diff(seconds) > 300 {
        return false;
    }
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).expect("a secret");
    signatures.split(' ').filter_map(|given| given.strip_prefix("v1,")).any(|given| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        STANDARD.decode(given).is_ok_and(|given| mac.verify_slice(&given).is_ok())
    })
}
`;

/** A secret that could end a text literal is not filled in. */
export function snippets(secret: string | null | undefined): Snippet[] {
  const filled = /^whsec_[A-Za-z0-9+/=]+$/.test(secret ?? "") ? (secret as string) : "whsec_…";
  return (
    [
      ["node", "Node.js", node],
      ["python", "Python", python],
      ["go", "Go", go],
      ["ruby", "Ruby", ruby],
      ["php", "PHP", php],
      ["java", "Java", java],
      ["csharp", "C#", csharp],
      ["rust", "Rust", rust],
    ] as const
  ).map(([id, name, write]) => ({ id, name, code: write(filled) }));
}
