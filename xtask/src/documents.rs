//! The documents: every link inside the repository leads somewhere, and the numbers that tests are named after exist.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::root;

pub(crate) fn check() -> anyhow::Result<()> {
    let root = root();
    let mut problems = Vec::new();
    for page in pages(&root)? {
        let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let folder = page.parent().context("a page lies in a folder")?;
        for target in links(&text) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !folder.join(path).exists() {
                problems.push(format!("{}: {target} leads nowhere", page.strip_prefix(&root)?.display()));
            }
        }
    }
    for (page, prefix, count) in [("docs/promises.md", 'I', 48), ("docs/promises.md", 'F', 42)] {
        let text = std::fs::read_to_string(root.join(page)).context(page)?;
        for number in 1..=count {
            if !has_number(&text, &format!("{prefix}{number}")) {
                problems.push(format!("{page}: {prefix}{number} is not explained"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// All Markdown below the top, except for what is built or fetched.
fn pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
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

/// The number as a word of its own: I4 is not in I48.
fn has_number(text: &str, number: &str) -> bool {
    text.match_indices(number).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + number.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
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
    fn a_number_is_a_word_of_its_own() {
        assert!(has_number("**I4 No phantom.**", "I4"));
        assert!(!has_number("I48 and XI4", "I4"));
    }
}
