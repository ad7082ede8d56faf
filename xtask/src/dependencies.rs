//! Whose code we ship: under which licences, and nothing that we decided against.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use crate::cargo;

/// One TLS and one crypto stack, built from source: a second one would be linked beside it, and panic at run time.
const BANNED: [&str; 4] = ["native-tls", "openssl", "openssl-sys", "ring"];

/// Licences that ask for no more than their text.
const LICENCES: [&str; 10] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

pub(crate) fn check() -> anyhow::Result<()> {
    let tree = cargo(&["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{l}"]);
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

/// One of the alternatives has only licences from the list.
fn is_acceptable(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], "").replace('/', " OR ");
    flat.split(" OR ").any(|alternative| alternative.split(" AND ").all(|licence| LICENCES.contains(&licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_acceptable_alternative_is_enough() {
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
            "MIT AND BSD-3-Clause",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(is_acceptable(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "SSPL-1.0 OR AGPL-3.0"] {
            assert!(!is_acceptable(bad), "{bad}");
        }
    }
}
