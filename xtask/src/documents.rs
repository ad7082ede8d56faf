//! The documents: every link inside the repository leads somewhere, and the numbers that tests are named after are
//! explained.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::root;

/// The numbers of the promises that are explained.
const PROMISES: [RangeInclusive<u32>; 2] = [1..=49, 51..=53];

pub(crate) fn check() -> anyhow::Result<()> {
    let root = root();
    let mut problems = Vec::new();
    for page in files(&root, "md")? {
        let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let folder = page.parent().context("a page lies in a folder")?;
        for target in links(&text) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !folder.join(path).exists() {
                problems.push(format!("{}: {target} leads nowhere", page.strip_prefix(&root)?.display()));
            }
        }
    }
    let promises = std::fs::read_to_string(root.join("docs/promises.md")).context("docs/promises.md")?;
    for number in PROMISES.into_iter().flatten() {
        if !promises.contains(&format!("**I{number} ")) {
            problems.push(format!("docs/promises.md: I{number} is not explained"));
        }
    }
    for number in 1..=42 {
        if !promises.contains(&format!("| F{number} |")) {
            problems.push(format!("docs/promises.md: F{number} is not explained"));
        }
    }
    for file in files(&root, "rs")? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for number in promises_named(&text).filter(|number| !PROMISES.iter().any(|range| range.contains(number))) {
            problems.push(format!("{}: a test is named after I{number}, which is no promise", file.strip_prefix(&root)?.display()));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// All files of a kind below a folder, except for what is built or fetched.
pub(crate) fn files(folder: &Path, kind: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            found.extend(files(&path, kind)?);
        } else if path.extension().is_some_and(|extension| extension == kind) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The targets of `[text](target)` that lie in the repository, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut in_fence = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        }
        if in_fence {
            continue;
        }
        for piece in line.split("](").skip(1) {
            let target = piece.split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// The numbers of the promises that tests in this text are named after, as in `fn i23_…`.
fn promises_named(text: &str) -> impl Iterator<Item = u32> {
    text.split("fn i").skip(1).filter_map(|rest| rest.split_once('_')?.0.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "see [a](a.md) and [b](docs/b.md#part), not [c](https://c.example)\n```\n[d](d.md)\n```\n[e](#here)";
        assert_eq!(links(text), ["a.md", "docs/b.md#part", "#here"]);
    }

    #[test]
    fn a_test_is_named_after_a_promise_by_its_number() {
        let text = "fn i23_no_more() {} fn index_of() {} async fn i4_() {} fn i() {}";
        assert_eq!(promises_named(text).collect::<Vec<_>>(), [23, 4]);
    }
}
