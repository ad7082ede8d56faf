//! Names keep their promises: a function called `is_…` or `has_…` answers a question and changes nothing.

use anyhow::{Context, bail};

use crate::documents::files;
use crate::root;

pub(crate) fn check() -> anyhow::Result<()> {
    let root = root();
    let mut problems = Vec::new();
    for file in files(&root, "rs")? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for (line, name) in questions_that_change(&text) {
            let path = file.strip_prefix(&root)?.display();
            problems.push(format!("{path}:{line}: {name} takes `&mut self`: a function that changes something is named by a verb"));
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// The line and name of every function named like a question that takes `&mut self`.
fn questions_that_change(text: &str) -> Vec<(usize, &str)> {
    let is_question = |name: &&str| name.starts_with("is_") || name.starts_with("has_");
    let found = text.match_indices("fn ").filter_map(|(at, keyword)| {
        let rest = &text[at + keyword.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let name = Some(&rest[..end]).filter(is_question)?;
        let parameters = &rest[rest.find('(')? + 1..];
        let line = text[..at].matches('\n').count() + 1;
        parameters.trim_start().starts_with("&mut self").then_some((line, name))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_takes_mut_self_is_found_in_every_layout() {
        // In two parts, so that the check does not find this file.
        let receiver = ["&mut", "self"].join(" ");
        let text = format!(
            "fn a() {{}}\n    pub fn is_free({receiver}, key: u8) {{}}\nasync fn has_read<T>(\n    {receiver},\n    t: T,\n) {{}}\n"
        );
        assert_eq!(questions_that_change(&text), [(2, "is_free"), (3, "has_read")]);
    }

    #[test]
    fn questions_about_self_and_verbs_are_left_alone() {
        let receiver = ["&mut", "self"].join(" ");
        let text = format!(
            "fn is_free(&self) -> bool {{ true }}\nfn release({receiver}) {{}}\nfn has(n: {receiver}) {{}}\nfn island({receiver}) {{}}\n"
        );
        assert_eq!(questions_that_change(&text), []);
    }
}
