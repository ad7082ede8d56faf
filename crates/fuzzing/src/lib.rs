//! Runs a function on mutated inputs, for tests.
//!
//! The inputs start from a few good examples. Each case takes one of them and changes it: bits, bytes, runs of bytes, words from a
//! dictionary, pieces of other inputs. The function returns a fingerprint of what it did with the input (an error, a count); an
//! input with a new fingerprint becomes an example for later cases. This is guided by outcomes, not by coverage of the code.
//!
//! `FUZZ_CASES` and `FUZZ_SECONDS` set how long a target runs (20,000 cases by default, whichever ends first), `FUZZ_SEED` where
//! it starts. A failure prints the input.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

const CASES_DEFAULT: u64 = 20_000;
/// Examples that are kept. Beyond that a new one replaces an old one.
const EXAMPLES_MAX: usize = 4_096;
const INPUT_BYTES_MAX: usize = 8 * 1024;
/// Longest time for one input. Far above what any target needs, on a machine that is busy.
const CASE_TIME_MAX: Duration = Duration::from_secs(10);

/// The examples and the words that the inputs of one target are made of.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub examples: &'a [&'a str],
    pub dictionary: &'a [&'a str],
}

/// Runs `target` on mutated inputs. It has to return without a panic; what it returns is a fingerprint of the outcome.
///
/// # Panics
/// If `target` panics, or takes too long for one input.
pub fn fuzz<T: Hash>(name: &str, inputs: Inputs<'_>, mut target: impl FnMut(&[u8]) -> T) {
    let cases_max = number("FUZZ_CASES").unwrap_or(CASES_DEFAULT);
    let time_max = number("FUZZ_SECONDS").map(Duration::from_secs);
    let mut random = Random(number("FUZZ_SEED").unwrap_or(1));
    let mut examples: Vec<Vec<u8>> = inputs.examples.iter().map(|text| text.as_bytes().to_vec()).collect();
    let mut seen = HashSet::new();
    let started = Instant::now();
    let mut cases = 0;
    while cases < cases_max && time_max.is_none_or(|max| started.elapsed() < max) {
        let input =
            match examples.get(usize::try_from(cases).unwrap_or(usize::MAX)).filter(|_| cases < inputs.examples.len() as u64) {
                Some(example) => example.clone(),
                None => mutated(&examples, inputs.dictionary, &mut random),
            };
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input))).unwrap_or_else(|panic| {
            eprintln!("{name}: case {cases} panicked on \"{}\"", input.escape_ascii());
            resume_unwind(panic)
        });
        assert!(
            began.elapsed() < CASE_TIME_MAX,
            "{name}: case {cases} took {:?} for \"{}\"",
            began.elapsed(),
            input.escape_ascii()
        );
        let mut hasher = DefaultHasher::new();
        outcome.hash(&mut hasher);
        if seen.len() < 1 << 20 && seen.insert(hasher.finish()) {
            if examples.len() < EXAMPLES_MAX {
                examples.push(input);
            } else {
                let place = random.below(examples.len());
                examples[place] = input;
            }
        }
        cases += 1;
    }
    println!("{name}: {cases} cases, {} outcomes, {:.0} s", seen.len(), started.elapsed().as_secs_f64());
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a whole number")))
}

/// One of the examples with one to eight changes.
fn mutated(examples: &[Vec<u8>], dictionary: &[&str], random: &mut Random) -> Vec<u8> {
    let mut input = examples.get(random.below(examples.len())).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.byte();
                }
            }
            2 => input.insert(at, random.byte()),
            3 => {
                let end = (at + 1 + random.below(16)).min(input.len());
                input.drain(at..end);
            }
            // A run of bytes again, some times.
            4 => {
                let end = (at + 1 + random.below(32)).min(input.len());
                let run = input[at..end].repeat(1 + random.below(8));
                input.splice(at..at, run);
            }
            5 => {
                let word = dictionary.get(random.below(dictionary.len())).copied().unwrap_or_default();
                input.splice(at..at, word.bytes());
            }
            // A word instead of what is there.
            6 => {
                let word = dictionary.get(random.below(dictionary.len())).copied().unwrap_or_default();
                let end = (at + word.len()).min(input.len());
                input.splice(at..end, word.bytes());
            }
            _ => {
                let other = &examples[random.below(examples.len())];
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// `SplitMix64`: the same seed gives the same cases.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, or 0 where there is nothing below it.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: Inputs<'static> = Inputs { examples: &["key=value"], dictionary: &["=", "password"] };

    #[test]
    fn a_panic_behind_two_conditions_is_found() {
        let fragile = |input: &[u8]| {
            let has_word = input.windows(8).any(|part| part == b"password");
            assert!(!(has_word && input.len() > 40), "found");
            (has_word, input.len() / 10)
        };
        assert!(catch_unwind(|| fuzz("fragile", INPUTS, fragile)).is_err());
    }

    #[test]
    fn the_same_seed_gives_the_same_cases() {
        let run = || {
            let mut hasher = DefaultHasher::new();
            fuzz("repeatable", INPUTS, |input| input.hash(&mut hasher));
            hasher.finish()
        };
        assert_eq!(run(), run());
    }
}
