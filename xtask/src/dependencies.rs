//! Whose code we ship: under which licences, and nothing that we decided against.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use crate::cargo;

/// One TLS and one crypto stack, built from source: a second one would be linked beside it, and panic at run time.
const BANNED: [&str; 4] = ["native-tls", "openssl", "openssl-sys", "ring"];

/// Licences that ask for no more than their text.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    // Data, not code: Mozilla's list of root certificates.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

pub(crate) fn check() -> anyhow::Result<()> {
    let tree = cargo(&[
        "tree",
        "--workspace",
        "--edges",
        "normal,build",
        "--target",
        "all",
        "--locked",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ]);
    let output = { tree }.output().context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut problems = BTreeSet::new();
    for line in String::from_utf8(output.stdout)?.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty())
    {
        let (package, licence) = line.split_once('|').with_context(|| format!("cargo tree said {line}"))?;
        let name = package.split(' ').next().unwrap_or_default();
        if BANNED.contains(&name) {
            problems.insert(format!("{package} is banned: there is one TLS and one crypto stack"));
        }
        if !is_acceptable(licence) {
            problems.insert(format!("{package} has the licence `{licence}`, which is not in xtask/src/dependencies.rs"));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", Vec::from_iter(problems).join("\n")) }
}

/// Whether the licences that we accept satisfy an SPDX expression: AND binds tighter than OR, parentheses tighter still.
fn is_acceptable(expression: &str) -> bool {
    // The old way to write OR.
    let expression = expression.replace('/', " OR ");
    let mut words = expression.replace('(', " ( ").replace(')', " ) ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    words.reverse();
    let accepted = any_of(&mut words);
    accepted && words.is_empty()
}

/// Reads from the end of the reversed list of words.
fn any_of(words: &mut Vec<String>) -> bool {
    let mut accepted = all_of(words);
    while words.last().is_some_and(|word| word == "OR") {
        words.pop();
        accepted |= all_of(words);
    }
    accepted
}

fn all_of(words: &mut Vec<String>) -> bool {
    let mut accepted = one(words);
    while words.last().is_some_and(|word| word == "AND") {
        words.pop();
        accepted &= one(words);
    }
    accepted
}

fn one(words: &mut Vec<String>) -> bool {
    match words.pop() {
        None => false,
        Some(word) if word == "(" => any_of(words) & words.pop().is_some_and(|word| word == ")"),
        Some(mut licence) => {
            if words.last().is_some_and(|word| word == "WITH") {
                words.pop();
                licence = format!("{licence} WITH {}", words.pop().unwrap_or_default());
            }
            LICENCES.contains(&licence.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_acceptable_alternative_is_enough() {
        for good in [
            "MIT",
            "MIT-0",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
            "MIT AND BSD-3-Clause",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(is_acceptable(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "SSPL-1.0 OR AGPL-3.0",
            "(MIT OR Apache-2.0) AND GPL-3.0",
            "GPL-3.0 WITH exception",
            "(MIT",
            "MIT MIT",
        ] {
            assert!(!is_acceptable(bad), "{bad}");
        }
    }
}
