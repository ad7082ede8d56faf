//! What a delivery costs in instructions and allocations, part by part, as Valgrind counts them: the same whatever else the
//! machine is doing, so that a change that makes it slower is seen.
//!
//! `crates/instructions` does the work, and says where each part ends. The figures that are kept in
//! `xtask/instructions.txt` are of one compiler and one kind of processor; `--accept` writes them anew.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::{cargo, root, shown, tools};

/// By how much a delivery may cost more than what is kept, and by how much one of its parts. Nine runs on a busy machine, one of them
/// beside two loops that did nothing else, differed by 0.12 % in a delivery and by 2.2 % in the smallest part, *schedule*, whose tables
/// are hashed by chance; by 1.3 % in allocations, where there are few.
const DELIVERY_TOLERANCE_PERCENT: f64 = 1.0;
const PART_TOLERANCE_PERCENT: f64 = 4.0;
/// Where valgrind begins to count anew: the name of the function that the example calls between two parts.
const BOUNDARY: &str = "*a_part_has_ended*";
/// Every way to get memory that Rust and SQLite use. The example has the system's allocator, whose functions have these names.
const ALLOCATORS: [&str; 6] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];

/// What was accepted last, below the top of the repository.
const FIGURES: &str = "xtask/instructions.txt";

/// What a part costs, for each delivery.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Cost {
    instructions: f64,
    allocations: f64,
}

/// What is done for every delivery. *publish* is not among them: it has its commit for itself.
const PARTS_OF_A_DELIVERY: [&str; 6] = ["api", "store", "schedule", "sign", "send", "record"];

type Costs = BTreeMap<String, Cost>;

pub(crate) fn run(accept: bool) -> anyhow::Result<()> {
    tools::ensure_valgrind()?;
    // With the product, so that both are built of the same parts.
    crate::run(&mut cargo(&["build", "--release", "--quiet", "--package", "posthaste", "--package", "posthaste-instructions"]))?;
    let counted = with_sum(count()?)?;
    let path = root().join(FIGURES);
    let (kept_under, kept) = match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).with_context(|| format!("{FIGURES} is not as `--accept` writes it"))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Default::default(),
        Err(error) => return Err(error).context(FIGURES),
    };
    print!("{}", table(&counted, &kept));
    let circumstances = circumstances();
    if accept {
        std::fs::write(&path, write(&counted, &circumstances))?;
        println!("written to {FIGURES}");
        return Ok(());
    }
    if kept.is_empty() {
        bail!("there is nothing to compare with: `cargo xtask bench-instructions --accept` writes {FIGURES}");
    }
    if kept_under != circumstances {
        println!("not compared: this is {circumstances}, and {FIGURES} was counted with {kept_under}; `--accept` writes it anew");
        return Ok(());
    }
    let worse = worse(&counted, &kept);
    if worse.is_empty() {
        return Ok(());
    }
    bail!(
        "a delivery has become dearer, by more than {DELIVERY_TOLERANCE_PERCENT} % or one of its parts by more than {PART_TOLERANCE_PERCENT} %: {}. If it is worth it, say so: \
         `cargo xtask bench-instructions --accept`",
        worse.join("; ")
    )
}

/// Runs it, and reads what was counted of each part.
fn count() -> anyhow::Result<Costs> {
    let directory = root().join("target/instructions");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory)?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--dump-before={BOUNDARY}"))
        .arg(format!("--callgrind-out-file={}", directory.join("counted").display()))
        .arg(root().join("target/release/posthaste-instructions"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().with_context(|| shown(&command))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(&command), output.status);
    }
    let said = String::from_utf8(output.stdout)?;
    let costs = of_parts(&said, &directory);
    std::fs::remove_dir_all(&directory)?;
    costs
}

/// The median of the rounds: in some of them connections are made, or the store tidies up beside what is counted.
fn of_parts(said: &str, directory: &Path) -> anyhow::Result<Costs> {
    let mut rounds: BTreeMap<(String, usize), Cost> = BTreeMap::new();
    for (place, line) in said.lines().enumerate() {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().with_context(|| format!("a part is told as `{line}`"));
        let (round, deliveries, name): (usize, f64, &str) = (word()?.parse()?, word()?.parse()?, word()?);
        if name == "preparation" {
            continue;
        }
        let path = directory.join(format!("counted.{}", place + 1));
        let text = std::fs::read(&path).with_context(|| format!("nothing was counted of {name}: {}", path.display()))?;
        let (instructions, allocations) = counted(&String::from_utf8_lossy(&text))?;
        // A part may come up more than once in a round.
        let cost = rounds.entry((name.to_owned(), round)).or_default();
        cost.instructions += instructions as f64 / deliveries;
        cost.allocations += allocations as f64 / deliveries;
    }
    let names: BTreeSet<String> = rounds.keys().map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        bail!("no part has ended");
    }
    let of = |name: &String, figure: fn(&Cost) -> f64| {
        median(rounds.iter().filter(|((other, _), _)| other == name).map(|(_, cost)| figure(cost)).collect())
    };
    let cost =
        |name: &String| Cost { instructions: of(name, |cost| cost.instructions), allocations: of(name, |cost| cost.allocations) };
    Ok(names.iter().map(|name| (name.clone(), cost(name))).collect())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Of one dump: all instructions, and the calls of functions that get memory.
fn counted(dump: &str) -> anyhow::Result<(u64, u64)> {
    let allocators = HashSet::from(ALLOCATORS);
    let (mut instructions, mut allocations, mut is_allocator) = (None, 0, false);
    for line in dump.lines() {
        if let Some(called) = line.strip_prefix("cfn=") {
            // A function that calls itself has a number behind its name.
            is_allocator = allocators.contains(called.split('\'').next().unwrap_or_default());
        } else if let Some(calls) = line.strip_prefix("calls=").filter(|_| is_allocator) {
            allocations += calls.split(' ').next().unwrap_or_default().parse::<u64>()?;
        } else if let Some(total) = line.strip_prefix("totals:") {
            instructions = Some(total.trim().parse()?);
        }
    }
    Ok((instructions.context("the dump has a sum")?, allocations))
}

/// With what a delivery costs from its publishing to its record.
fn with_sum(mut costs: Costs) -> anyhow::Result<Costs> {
    let mut delivery = Cost::default();
    for name in PARTS_OF_A_DELIVERY {
        let part = costs.get(name).with_context(|| format!("nothing was counted of {name}"))?;
        delivery.instructions += part.instructions;
        delivery.allocations += part.allocations;
    }
    costs.insert("delivery".to_owned(), delivery);
    Ok(costs)
}

/// What is dearer than it may be, in words.
fn worse(counted: &Costs, before: &Costs) -> Vec<String> {
    let mut worse = Vec::new();
    for (name, now) in counted {
        let Some(before) = before.get(name) else {
            worse.push(format!("{name} was not there before"));
            continue;
        };
        let tolerance = if name == "delivery" { DELIVERY_TOLERANCE_PERCENT } else { PART_TOLERANCE_PERCENT };
        for (what, now, before) in
            [("instructions", now.instructions, before.instructions), ("allocations", now.allocations, before.allocations)]
        {
            if percent(now, before) > tolerance {
                worse.push(format!("{name} {before:.1} → {now:.1} {what}"));
            }
        }
    }
    worse
}

/// By how much it is more than before.
fn percent(now: f64, before: f64) -> f64 {
    if before == 0.0 { if now == 0.0 { 0.0 } else { f64::INFINITY } } else { (now / before - 1.0) * 100.0 }
}

fn table(counted: &Costs, before: &Costs) -> String {
    let mut table = format!("{:<12} {:>14} {:>9} {:>13} {:>9}\n", "a delivery", "instructions", "", "allocations", "");
    let change =
        |now: f64, before: Option<f64>| before.map_or_else(String::new, |before| format!("{:+.2} %", percent(now, before)));
    for (name, now) in counted {
        let before = before.get(name);
        let instructions = change(now.instructions, before.map(|before| before.instructions));
        let allocations = change(now.allocations, before.map(|before| before.allocations));
        let _ =
            writeln!(table, "{name:<12} {:>14.0} {instructions:>9} {:>13.2} {allocations:>9}", now.instructions, now.allocations);
    }
    table
}

fn write(costs: &Costs, circumstances: &str) -> String {
    let mut text = format!(
        "# What a delivery costs: part, instructions, allocations. `cargo xtask bench-instructions --accept` writes it.\n# {circumstances}\n"
    );
    for (name, cost) in costs {
        let _ = writeln!(text, "{}\t{:.1}\t{:.3}", name, cost.instructions, cost.allocations);
    }
    text
}

/// The circumstances, and the figures.
fn read(text: &str) -> anyhow::Result<(String, Costs)> {
    let circumstances = text.lines().nth(1).and_then(|line| line.strip_prefix("# ")).context("a line about the circumstances")?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let cost = |line: &str| {
        let mut columns = line.split('\t');
        let name = columns.next().context("a name")?.to_owned();
        let instructions = columns.next().context("a count of instructions")?.parse()?;
        let allocations = columns.next().context("a count of allocations")?.parse()?;
        anyhow::Ok((name, Cost { instructions, allocations }))
    };
    Ok((circumstances.to_owned(), lines.map(cost).collect::<anyhow::Result<_>>()?))
}

/// What the figures depend on beside the code: the compiler, what counts, whose allocator it is, and what the processor can do, by
/// which libraries choose their code.
fn circumstances() -> String {
    let first_line = |program: &str| {
        let output = Command::new(program).arg("--version").output().ok();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
            .unwrap_or_default()
    };
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can =
        |feature: &str| processor.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == feature));
    let features: Vec<&str> = ["avx2", "avx512f", "erms", "fsrm", "sha_ni"].into_iter().filter(|feature| can(feature)).collect();
    let arch = std::env::consts::ARCH;
    format!("{}, {}, {}, {arch} {}", first_line("rustc"), first_line("valgrind"), first_line("ldd"), features.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(parts: &[(&str, f64, f64)]) -> Costs {
        let cost = |(name, instructions, allocations): &(&str, f64, f64)| {
            ((*name).to_owned(), Cost { instructions: *instructions, allocations: *allocations })
        };
        parts.iter().map(cost).collect()
    }

    #[test]
    fn a_dump_says_how_many_instructions_and_who_was_asked_for_memory() {
        let dump = "events: Ir\nsummary: 77\n\nfn=main\n1 2\ncfn=malloc\ncalls=3 1\n1 40\ncfn=malloc_consolidate\ncalls=9 1\n1 1\n\
                    cfn=realloc'2\ncalls=2 1\n1 1\ncfn=free\ncalls=5 1\n1 5\n\ntotals: 77\n";
        assert_eq!(counted(dump).unwrap(), (77, 5));
        assert!(counted("fn=main\n").is_err(), "one that was cut short is not taken for one of nothing");
    }

    #[test]
    fn what_is_dearer_than_it_may_be_is_named_and_what_is_cheaper_is_not() {
        let before = costs(&[("send", 1000.0, 10.0), ("sign", 500.0, 2.0)]);
        assert!(worse(&before, &before).is_empty());
        assert!(worse(&costs(&[("send", 1030.0, 10.1), ("sign", 100.0, 0.0)]), &before).is_empty());
        let whole = [costs(&[("delivery", 1000.0, 1.0)]), costs(&[("delivery", 1015.0, 1.0)])];
        assert_eq!(worse(&whole[1], &whole[0]), ["delivery 1000.0 → 1015.0 instructions"], "chance evens out in the sum");
        let dearer = worse(&costs(&[("send", 1050.0, 10.0), ("sign", 500.0, 3.0)]), &before);
        assert_eq!(dearer, ["send 1000.0 → 1050.0 instructions", "sign 2.0 → 3.0 allocations"]);
        assert_eq!(worse(&costs(&[("relay", 1.0, 1.0)]), &before), ["relay was not there before"]);
    }

    #[test]
    fn a_delivery_is_the_sum_of_its_parts_and_none_of_them_may_be_missing() {
        let mut parts = costs(&[
            ("api", 30.0, 4.0),
            ("publish", 100.0, 10.0),
            ("store", 20.0, 5.0),
            ("schedule", 3.0, 1.0),
            ("sign", 4.0, 1.0),
            ("send", 5.0, 1.0),
            ("record", 6.0, 1.0),
        ]);
        assert_eq!(with_sum(parts.clone()).unwrap()["delivery"], Cost { instructions: 68.0, allocations: 13.0 });
        parts.remove("send");
        assert!(with_sum(parts).is_err());
    }

    #[test]
    fn a_round_in_which_something_else_was_done_does_not_count() {
        let directory = std::env::temp_dir().join(format!("posthaste-xtask-instructions-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut said = String::new();
        for (place, (round, name, total)) in
            [(0, "send", 900), (0, "preparation", 1), (1, "send", 100), (1, "schedule", 10), (1, "schedule", 30), (2, "send", 110)]
                .into_iter()
                .enumerate()
        {
            let _ = writeln!(said, "{round} 10 {name}");
            std::fs::write(directory.join(format!("counted.{}", place + 1)), format!("totals: {total}\n")).unwrap();
        }
        let costs = of_parts(&said, &directory);
        std::fs::remove_dir_all(&directory).unwrap();
        let costs = costs.unwrap();
        assert_eq!((costs["send"].instructions, costs["schedule"].instructions, costs.len()), (11.0, 4.0, 2));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let costs = costs(&[("send", 1000.5, 10.25), ("store alone", 1.0, 0.0)]);
        assert_eq!(read(&write(&costs, "somewhere")).unwrap(), ("somewhere".to_owned(), costs));
        assert!(read("# these\n# here\nsend\t1\n").is_err());
        assert!(read("send\t1\t1\n").is_err(), "nobody knows where");
    }
}
