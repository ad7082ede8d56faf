//! The filters of many endpoints, asked together.
//!
//! Paths of all filters are laid into one tree, and an event is walked once along it: a hundred conditions on
//! `data.items.sku` cost one pass over the items, and a thousand equalities at one path cost one lookup for each value. What it
//! costs is counted in steps, which depend on the event and the filters alone, so that the same event is always accepted or
//! always refused. One step is a value that is looked at, a condition that is tried, or 64 bytes that are compared.

use std::collections::BTreeMap;

use super::{Condition, Filter, Subject, Test};
use crate::json::Json;

/// What the filters of one tenant may cost for one event: a thousand conditions on each of two thousand elements. Some tens of milliseconds.
pub const STEPS_MAX: u64 = 2_000_000;

/// Bytes that are compared in one step.
const STEP_BYTES: usize = 64;

/// The event needs more steps than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the filters of this tenant's endpoints need more than {max} steps for this event; make it smaller, or the filters simpler"
)]
pub struct TooCostly {
    pub max: u64,
}

/// Made once for each state of a tenant's configuration.
#[derive(Default, Debug)]
pub struct FilterSet {
    /// The first is the envelope.
    nodes: Vec<Node>,
    tests: Vec<CompiledTest>,
    /// Values that tests ask for by equality, each with the tests that ask for it.
    operands: Vec<Vec<u32>>,
    filters: Vec<CompiledFilter>,
}

/// Where some path leads.
#[derive(Default, Debug)]
struct Node {
    parent: u32,
    children: BTreeMap<String, u32>,
    /// The children whose names are places in an array, by place.
    indexes: Vec<(usize, u32)>,
    /// Operands of `$eq` and `$in`, by value.
    equals: BTreeMap<Json, u32>,
    /// Steps of one lookup in `equals`.
    lookup_steps: u64,
}

#[derive(Debug)]
struct CompiledTest {
    node: u32,
    test: Test,
    is_equality: bool,
    steps: u64,
}

#[derive(Debug)]
struct CompiledFilter {
    conditions: Vec<Expression>,
    /// Each once.
    tests: Vec<u32>,
}

#[derive(Debug)]
enum Expression {
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    Holds(u32),
}

impl FilterSet {
    pub fn new<'a>(filters: impl IntoIterator<Item = &'a Filter>) -> FilterSet {
        let mut set = FilterSet { nodes: vec![Node::default()], ..FilterSet::default() };
        // By path and test, so that equal conditions of many filters are one.
        let mut known: BTreeMap<(u32, String), Vec<u32>> = BTreeMap::new();
        for filter in filters {
            let mut tests = Vec::new();
            let conditions = filter.conditions.iter().map(|condition| set.compile(condition, &mut tests, &mut known)).collect();
            tests.sort_unstable();
            tests.dedup();
            set.filters.push(CompiledFilter { conditions, tests });
        }
        for node in &mut set.nodes {
            let longest = node.equals.keys().map(weight).max().unwrap_or(0);
            let rounds = u64::from(node.equals.len().checked_ilog2().unwrap_or(0)) + 1;
            node.lookup_steps = rounds * steps_of(longest);
        }
        set
    }

    fn compile(
        &mut self,
        condition: &Condition,
        tests: &mut Vec<u32>,
        known: &mut BTreeMap<(u32, String), Vec<u32>>,
    ) -> Expression {
        match condition {
            Condition::All(inner) => Expression::All(inner.iter().map(|one| self.compile(one, tests, known)).collect()),
            Condition::Any(inner) => Expression::Any(inner.iter().map(|one| self.compile(one, tests, known)).collect()),
            Condition::Not(inner) => Expression::Not(Box::new(self.compile(inner, tests, known))),
            Condition::At { path, test } => {
                let node = path.iter().fold(0, |node, step| self.child(node, step));
                let number = self.test(node, test, known);
                tests.push(number);
                Expression::Holds(number)
            }
        }
    }

    fn child(&mut self, node: u32, step: &str) -> u32 {
        if let Some(child) = self.nodes[at(node)].children.get(step) {
            return *child;
        }
        let child = u32::try_from(self.nodes.len()).expect("a filter has few steps");
        self.nodes.push(Node { parent: node, ..Node::default() });
        let parent = &mut self.nodes[at(node)];
        parent.children.insert(step.to_owned(), child);
        if let Ok(index) = step.parse() {
            parent.indexes.push((index, child));
        }
        child
    }

    fn test(&mut self, node: u32, test: &Test, known: &mut BTreeMap<(u32, String), Vec<u32>>) -> u32 {
        let alike = known.entry((node, kind(test))).or_default();
        if let Some(number) = alike.iter().find(|number| self.tests[at(**number)].test == *test) {
            return *number;
        }
        let number = u32::try_from(self.tests.len()).expect("a filter has few conditions");
        alike.push(number);
        let mut is_equality = true;
        match test {
            Test::Equals(operand) => self.operand(node, operand, number),
            Test::OneOf(operands) => operands.iter().for_each(|operand| self.operand(node, operand, number)),
            Test::Exists | Test::Ordered { .. } | Test::Prefix(_) => is_equality = false,
        }
        let bytes = match test {
            Test::Ordered { by, .. } => weight(by),
            Test::Prefix(prefix) => prefix.len(),
            Test::Exists | Test::Equals(_) | Test::OneOf(_) => 0,
        };
        self.tests.push(CompiledTest { node, test: test.clone(), is_equality, steps: steps_of(bytes) });
        number
    }

    fn operand(&mut self, node: u32, operand: &Json, test: u32) {
        let next = u32::try_from(self.operands.len()).expect("a filter has few values");
        let number = *self.nodes[at(node)].equals.entry(operand.clone()).or_insert(next);
        if number == next {
            self.operands.push(vec![]);
        }
        self.operands[at(number)].push(test);
    }

    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Which of the `wanted` filters (by their places) match, in their order, and how many steps it took to find out.
    pub fn matches(&self, subject: &Subject, wanted: &[usize], steps_max: u64) -> Result<(Vec<bool>, u64), TooCostly> {
        let mut walk = Walk {
            set: self,
            left: steps_max,
            max: steps_max,
            tests: vec![Mark::Unwanted; self.tests.len()],
            was_found: vec![false; self.operands.len()],
            nodes: self.nodes.iter().map(|_| Open::default()).collect(),
        };
        for place in wanted {
            walk.want(&self.filters[*place])?;
        }
        walk.visit(0, &subject.0, true)?;
        let answers = wanted.iter().map(|place| self.filters[*place].conditions.iter().all(|one| one.holds(&walk.tests))).collect();
        Ok((answers, steps_max - walk.left))
    }
}

impl Expression {
    fn holds(&self, tests: &[Mark]) -> bool {
        match self {
            Expression::All(all) => all.iter().all(|one| one.holds(tests)),
            Expression::Any(any) => any.iter().any(|one| one.holds(tests)),
            Expression::Not(inner) => !inner.holds(tests),
            Expression::Holds(test) => tests[at(*test)] == Mark::Holds,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    Unwanted,
    Open,
    Holds,
}

/// What is still to be found out at a node.
#[derive(Clone, Default, Debug)]
struct Open {
    /// Open tests here and below.
    below: u32,
    /// Open tests here that are found by looking up the value.
    equalities: u32,
    /// The others that were asked for here; those that hold are taken out.
    tried: Vec<u32>,
}

struct Walk<'a> {
    set: &'a FilterSet,
    left: u64,
    max: u64,
    tests: Vec<Mark>,
    was_found: Vec<bool>,
    nodes: Vec<Open>,
}

impl Walk<'_> {
    fn spend(&mut self, steps: u64) -> Result<(), TooCostly> {
        self.left = self.left.checked_sub(steps).ok_or(TooCostly { max: self.max })?;
        Ok(())
    }

    fn want(&mut self, filter: &CompiledFilter) -> Result<(), TooCostly> {
        self.spend(filter.tests.len() as u64)?;
        for number in &filter.tests {
            if self.tests[at(*number)] != Mark::Unwanted {
                continue;
            }
            self.tests[at(*number)] = Mark::Open;
            let test = &self.set.tests[at(*number)];
            if test.is_equality {
                self.nodes[at(test.node)].equalities += 1;
            } else {
                self.nodes[at(test.node)].tried.push(*number);
            }
            self.count_up(test.node, 1);
        }
        Ok(())
    }

    fn count_up(&mut self, mut node: u32, by: i32) {
        loop {
            let below = &mut self.nodes[at(node)].below;
            *below = below.checked_add_signed(by).expect("closed as often as opened");
            if node == 0 {
                return;
            }
            node = self.set.nodes[at(node)].parent;
        }
    }

    fn close(&mut self, number: u32) {
        if self.tests[at(number)] != Mark::Open {
            return;
        }
        self.tests[at(number)] = Mark::Holds;
        let test = &self.set.tests[at(number)];
        if test.is_equality {
            self.nodes[at(test.node)].equalities -= 1;
        }
        self.count_up(test.node, -1);
    }

    /// `has_arrived`: the path leads to this value. Else it leads to an array above it, and goes on in its elements by name.
    fn visit(&mut self, node: u32, value: &Json, has_arrived: bool) -> Result<(), TooCostly> {
        if self.nodes[at(node)].below == 0 {
            return Ok(());
        }
        self.spend(1)?;
        if has_arrived {
            self.try_tests(node, value)?;
            if let Json::Array(items) = value {
                for item in items {
                    if self.nodes[at(node)].equalities == 0 && self.nodes[at(node)].tried.is_empty() {
                        break;
                    }
                    self.try_tests(node, item)?;
                }
            }
        }
        let set = self.set;
        let steps = &set.nodes[at(node)];
        match value {
            Json::Object(members) if !steps.children.is_empty() => {
                if steps.children.len() <= members.len() {
                    self.spend(steps.children.len() as u64)?;
                    for (name, child) in &steps.children {
                        if self.nodes[at(*child)].below > 0
                            && let Some(member) = members.get(name)
                            && (has_arrived || name.parse::<usize>().is_err())
                        {
                            self.visit(*child, member, true)?;
                        }
                    }
                } else {
                    self.spend(members.len() as u64)?;
                    for (name, member) in members.iter() {
                        if let Some(child) = steps.children.get(name)
                            && (has_arrived || name.parse::<usize>().is_err())
                        {
                            self.visit(*child, member, true)?;
                        }
                    }
                }
            }
            Json::Array(items) => {
                if has_arrived {
                    for (index, child) in &steps.indexes {
                        self.spend(1)?;
                        if let Some(item) = items.get(*index) {
                            self.visit(*child, item, true)?;
                        }
                    }
                }
                if steps.indexes.len() < steps.children.len() {
                    for item in items {
                        self.visit(node, item, false)?;
                    }
                }
            }
            Json::Object(_) | Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => {}
        }
        Ok(())
    }

    /// On this value alone, not on its elements.
    fn try_tests(&mut self, node: u32, value: &Json) -> Result<(), TooCostly> {
        let set = self.set;
        if self.nodes[at(node)].equalities > 0 {
            let steps = &set.nodes[at(node)];
            self.spend(steps.lookup_steps)?;
            if let Some(operand) = steps.equals.get(value)
                && !self.was_found[at(*operand)]
            {
                self.was_found[at(*operand)] = true;
                let asking = &set.operands[at(*operand)];
                self.spend(asking.len() as u64)?;
                for test in asking {
                    self.close(*test);
                }
            }
        }
        let mut place = 0;
        while let Some(number) = self.nodes[at(node)].tried.get(place).copied() {
            let test = &set.tests[at(number)];
            self.spend(test.steps)?;
            if test.test.holds_for(value) {
                self.nodes[at(node)].tried.swap_remove(place);
                self.close(number);
            } else {
                place += 1;
            }
        }
        Ok(())
    }
}

fn at(number: u32) -> usize {
    number as usize
}

fn steps_of(bytes: usize) -> u64 {
    1 + (bytes / STEP_BYTES) as u64
}

/// How much there is to compare, about in bytes.
fn weight(value: &Json) -> usize {
    match value {
        Json::Null | Json::Bool(_) => 1,
        Json::Number(number) => number.digits_count(),
        Json::Text(text) => text.len(),
        Json::Array(items) => items.iter().map(|item| 16 + weight(item)).sum(),
        Json::Object(members) => members.iter().map(|(name, member)| 16 + name.len() + weight(member)).sum(),
    }
}

/// Equal tests are of one kind; unlike kinds need not be compared.
fn kind(test: &Test) -> String {
    let short = |value: &Json| match value {
        Json::Text(words) => format!("text {}", words.chars().take(32).collect::<String>()),
        Json::Number(number) => format!("number {number:?}").chars().take(80).collect(),
        other @ (Json::Null | Json::Bool(_)) => format!("{other:?}"),
        Json::Array(_) => "array".to_owned(),
        Json::Object(_) => "object".to_owned(),
    };
    match test {
        Test::Exists => "exists".to_owned(),
        Test::Equals(operand) => format!("equals {}", short(operand)),
        Test::OneOf(operands) => format!("in {} {}", operands.len(), operands.first().map(short).unwrap_or_default()),
        Test::Ordered { by, accepts } => format!("ordered {accepts:?} {}", short(by)),
        Test::Prefix(prefix) => format!("prefix {}", prefix.chars().take(32).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;

    fn set(filters: &[String]) -> FilterSet {
        let filters: Vec<Filter> = filters.iter().map(|filter| Filter::parse(filter).unwrap()).collect();
        FilterSet::new(&filters)
    }

    fn steps(filters: &[String], data: &str) -> u64 {
        let places: Vec<usize> = (0..filters.len()).collect();
        set(filters).matches(&Subject::of(&event("a", data)), &places, u64::MAX).unwrap().1
    }

    /// `{"$or": [{"data.a.b": {"$eq": 0}}, …]}`
    fn alternatives(operator: &str, count: usize) -> String {
        let conditions: Vec<String> = (0..count).map(|n| format!(r#"{{"data.a.b": {{"{operator}": {}}}}}"#, n + 10)).collect();
        format!(r#"{{"$or": [{}]}}"#, conditions.join(","))
    }

    fn array(count: usize, item: &str) -> String {
        format!(r#"{{"a": [{}]}}"#, vec![item; count].join(","))
    }

    #[test]
    fn a_path_that_many_conditions_share_is_walked_once() {
        let one = steps(&[alternatives("$eq", 1)], &array(10_000, "{}"));
        let many = steps(&vec![alternatives("$eq", 100); 20], &array(10_000, "{}"));
        assert!(many < one + 2_200, "{one} steps for one condition, {many} for 2,000");
    }

    #[test]
    fn equalities_at_one_path_cost_one_lookup_for_each_value() {
        let one = steps(&[alternatives("$eq", 1)], &array(10_000, r#"{"b":1}"#));
        let many = steps(&[alternatives("$eq", 100)], &array(10_000, r#"{"b":1}"#));
        assert!(many < 4 * one, "{one} steps for one condition, {many} for 100");
    }

    #[test]
    fn what_costs_too_much_is_refused_at_the_same_step_every_time() {
        let filters = vec![alternatives("$gt", 100)];
        let data = array(10_000, r#"{"b":1}"#);
        let subject = Subject::of(&event("a", &data));
        let needed = steps(&filters, &data);
        assert!((1_000_000..1_100_000).contains(&needed), "{needed}");
        let set = set(&filters);
        assert_eq!(set.matches(&subject, &[0], needed).unwrap(), (vec![false], needed));
        assert_eq!(set.matches(&subject, &[0], needed - 1), Err(TooCostly { max: needed - 1 }));
    }

    #[test]
    fn filters_that_are_not_wanted_cost_nothing() {
        let mut filters = vec![r#"{"data.a.b": {"$gt": 5}}"#.to_owned()];
        let data = array(100, r#"{"b":1}"#);
        let alone = steps(&filters, &data);
        filters.push(alternatives("$lt", 100));
        let (_, beside) = set(&filters).matches(&Subject::of(&event("a", &data)), &[0], u64::MAX).unwrap();
        assert_eq!(beside, alone);
    }

    #[test]
    fn long_values_cost_more_than_short_ones() {
        let long = format!(r#"{{"data.a": {{"$prefix": "{}"}}}}"#, "x".repeat(6_400));
        let short = r#"{"data.a": {"$prefix": "x"}}"#.to_owned();
        let data = format!(r#"{{"a": "{}"}}"#, "x".repeat(6_399));
        assert_eq!(steps(&[long], &data), steps(&[short], &data) + 100);
    }
}
