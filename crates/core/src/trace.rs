//! Which trace an event belongs to, and whether anybody looks at it.
//!
//! One event is one trace, from its publishing to its last attempt. A caller's own trace (W3C Trace Context) goes on; what cannot
//! be read of it is as if it had not been said. Where there is none, the trace's id is computed from the event's, so that nothing
//! has to be kept: every node, every retry and every replay comes to the same id, and to the same answer whether it is looked at.

use std::fmt;

use crate::event::Event;
use crate::jitter::mix;

/// Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl TraceId {
    pub fn new(id: u128) -> Option<TraceId> {
        (id != 0).then_some(TraceId(id))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    pub fn new(id: u64) -> Option<SpanId> {
        (id != 0).then_some(SpanId(id))
    }

    /// From a number that looks random, whatever it is.
    pub fn from_draw(draw: u64) -> SpanId {
        SpanId(draw.max(1))
    }

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

/// Somebody looks at this trace.
const SAMPLED: u8 = 1;
/// The rightmost seven bytes of the trace's id are random.
const RANDOM: u8 = 2;

/// What a caller has said of its trace: kept with the event, and passed on to whoever receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceContext {
    trace: TraceId,
    parent: SpanId,
    flags: u8,
    /// What others keep there for themselves. We do not read it.
    state: Option<Box<str>>,
}

impl TraceContext {
    /// Reads the two headers; each may have come more than once. `None` where the first cannot be read. The second is left out
    /// where it cannot.
    pub fn parse<'a>(
        traceparent: impl IntoIterator<Item = &'a str>,
        tracestate: impl IntoIterator<Item = &'a str>,
    ) -> Option<TraceContext> {
        let mut given = traceparent.into_iter();
        let (Some(parent), None) = (given.next(), given.next()) else { return None };
        let (trace, parent, flags) = read_traceparent(parent)?;
        Some(TraceContext { trace, parent, flags, state: read_tracestate(tracestate) })
    }

    /// As it came. Of a version that we do not know, what we understand of it.
    pub fn traceparent(&self) -> String {
        traceparent(self.trace, self.parent, self.flags)
    }

    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// For the store: the first header, and on a second line the other, if there is one.
    pub fn to_text(&self) -> String {
        let first = self.traceparent();
        self.tracestate().map_or(first.clone(), |state| format!("{first}\n{state}"))
    }

    /// What [`TraceContext::to_text`] has written.
    pub fn from_text(text: &str) -> Option<TraceContext> {
        let mut lines = text.lines();
        TraceContext::parse(lines.next(), lines)
    }
}

fn traceparent(trace: TraceId, parent: SpanId, flags: u8) -> String {
    format!("00-{trace}-{parent}-{flags:02x}")
}

/// `00-`, 32 digits, `-`, 16 digits, `-`, two digits; later versions may go on after another `-`.
fn read_traceparent(text: &str) -> Option<(TraceId, SpanId, u8)> {
    const LENGTH: usize = 55;
    let (known, rest) = text.split_at_checked(LENGTH)?;
    let mut fields = known.split('-');
    let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let version = lower_hex(version, 2)?;
    let is_whole = if version == 0 { rest.is_empty() } else { version != 0xff && (rest.is_empty() || rest.starts_with('-')) };
    if fields.next().is_some() || !is_whole {
        return None;
    }
    let flags = u8::try_from(lower_hex(flags, 2)?).ok()?;
    let parent = SpanId::new(u64::try_from(lower_hex(parent, 16)?).ok()?)?;
    // Of flags that a later version has, we cannot know what they mean.
    let flags = if version == 0 { flags } else { flags & (SAMPLED | RANDOM) };
    Some((TraceId::new(lower_hex(trace, 32)?)?, parent, flags))
}

fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_lower_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_lower_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

const STATE_MEMBERS_MAX: usize = 32;
/// What everybody has to pass on at least, and we at most.
const STATE_BYTES_MAX: usize = 512;
/// Where it is too much, those that are longer than this go first.
const STATE_MEMBER_BYTES_LONG: usize = 128;

/// All of them as one list. `None` if there is nothing in it, or something that may not be.
fn read_tracestate<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Box<str>> {
    let members = headers.into_iter().flat_map(|header| header.split(',')).map(|member| member.trim_matches([' ', '\t']));
    let mut kept: Vec<&str> = Vec::new();
    for member in members.filter(|member| !member.is_empty()) {
        let (key, value) = member.split_once('=')?;
        let is_new = kept.iter().all(|before| before.split_once('=').is_none_or(|(before, _)| before != key));
        if !is_state_key(key) || !is_state_value(value) || !is_new || kept.len() == STATE_MEMBERS_MAX {
            return None;
        }
        kept.push(member);
    }
    let bytes = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>().saturating_sub(1);
    if bytes(&kept) > STATE_BYTES_MAX {
        kept.retain(|member| member.len() <= STATE_MEMBER_BYTES_LONG);
    }
    while bytes(&kept) > STATE_BYTES_MAX {
        kept.pop();
    }
    if kept.is_empty() { None } else { Some(kept.join(",").into()) }
}

fn is_state_key(key: &str) -> bool {
    let begins = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let goes_on = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    begins && key.len() <= 256 && key.bytes().all(goes_on)
}

fn is_state_value(value: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_allowed) && !value.ends_with(' ')
}

/// The trace of an event that somebody looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    pub id: TraceId,
    /// The span of its publishing, which those of its attempts are below.
    pub publish: SpanId,
    /// The caller's span, above that.
    pub caller: Option<SpanId>,
    flags: u8,
}

/// Chooses the events whose traces are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sampler {
    /// Trace ids whose rightmost 56 bits are below it are not looked at, as `OpenTelemetry` has it.
    threshold: u64,
}

/// One more than the largest number of 56 bits.
const DRAWS: u64 = 1 << 56;

impl Sampler {
    /// `ratio` of all events, from 0 to 1.
    pub fn new(ratio: f64) -> Sampler {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 2^56, from none to all of it")]
        let threshold = ((1.0 - ratio.clamp(0.0, 1.0)) * DRAWS as f64) as u64;
        Sampler { threshold }
    }

    /// `None` where nobody looks. A caller who has a trace has decided that; else its id does.
    pub fn trace_of(self, event: &Event) -> Option<Trace> {
        let (id, caller, flags) = if let Some(context) = event.trace.as_deref() {
            if context.flags & SAMPLED == 0 {
                return None;
            }
            (context.trace, Some(context.parent), SAMPLED | context.flags & RANDOM)
        } else {
            let low = derived(event, LOW);
            if low % DRAWS < self.threshold {
                return None;
            }
            let id = u128::from(derived(event, HIGH)) << 64 | u128::from(low);
            (TraceId(id.max(1)), None, SAMPLED)
        };
        Some(Trace { id, publish: SpanId::from_draw(derived(event, PUBLISH)), caller, flags })
    }
}

/// What a receiver is told of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassedOn<'a> {
    pub traceparent: String,
    pub tracestate: Option<&'a str>,
}

/// Below the span of the request, if there is one; else just what the caller has said, if it has said something.
pub fn passed_on(event: &Event, post: Option<(Trace, SpanId)>) -> Option<PassedOn<'_>> {
    let context = event.trace.as_deref();
    let traceparent = match post {
        Some((trace, post)) => traceparent(trace.id, post, trace.flags),
        None => context?.traceparent(),
    };
    Some(PassedOn { traceparent, tracestate: context.and_then(TraceContext::tracestate) })
}

const LOW: u64 = 1;
const HIGH: u64 = 2;
const PUBLISH: u64 = 3;

/// A number that looks random, the same every time for the same event. The algorithm is fixed: nodes of two releases have to
/// agree, and so has whoever tries an event again after an upgrade.
fn derived(event: &Event, purpose: u64) -> u64 {
    // Odd, so that nothing is lost by multiplying with it; the rotation brings down what it has pushed up.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |mixed: u64, word: u64| (mixed ^ word).wrapping_mul(FACTOR).rotate_left(32);
    let mut mixed = mix(purpose);
    for text in [event.tenant.as_str(), event.id.as_str()] {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mixed = step(mixed, u64::from_le_bytes(word));
        }
        // So that no letter can go from one to the other.
        mixed = step(mixed, text.len() as u64);
    }
    mix(mixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;
    use crate::id::{EventId, TenantId};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parse(traceparent: &str, tracestate: &str) -> Option<TraceContext> {
        TraceContext::parse([traceparent], [tracestate])
    }

    fn named(tenant: &str, id: &str) -> Event {
        Event { tenant: TenantId::parse(tenant).unwrap(), id: EventId::parse(id).unwrap(), ..event("a", "1") }
    }

    fn within(context: &str) -> Event {
        Event { trace: Some(Box::new(parse(context, "").unwrap())), ..event("a", "1") }
    }

    #[test]
    fn a_traceparent_is_kept_as_it_came() {
        for text in [PARENT, "00-00000000000000000000000000000001-0000000000000001-00", &PARENT.replace("-01", "-ff")] {
            let context = parse(text, "").unwrap();
            assert_eq!(context.traceparent(), text);
            assert_eq!(TraceContext::from_text(&context.to_text()), Some(context));
        }
    }

    #[test]
    fn what_is_no_traceparent_is_as_if_it_had_not_been_said() {
        let ours = |part: &str, by: &str| PARENT.replacen(part, by, 1);
        for text in [
            "",
            "00",
            "é",
            &ours("4b", "4B"),
            &ours("4b", "4g"),
            &ours("4b", "+b"),
            &ours("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &ours("00f067aa0ba902b7", "0000000000000000"),
            &ours("00-", "ff-"),
            &ours("00-", "0-"),
            &ours("-01", "-1"),
            &ours("-01", "-0x"),
            &ours("-", "_"),
            &format!("{PARENT}-"),
            &format!("{PARENT}-more"),
            &format!("{PARENT} "),
            &format!(" {PARENT}"),
            &format!("{}more", ours("00-", "01-")),
            &"é".repeat(28),
        ] {
            assert_eq!(parse(text, "a=1"), None, "{text}");
        }
        assert_eq!(TraceContext::parse([PARENT, PARENT], []), None, "which of the two?");
        assert_eq!(TraceContext::parse([], ["a=1"]), None);
    }

    #[test]
    fn of_a_later_version_the_part_that_we_know_is_kept() {
        let later = PARENT.replacen("00-", "cc-", 1);
        for text in [later.clone(), format!("{later}-what-the.future-will/be"), later.replace("-01", "-fd")] {
            assert_eq!(parse(&text, "").unwrap().traceparent(), PARENT, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_kept_or_left_out_as_a_whole() {
        let kept =
            |headers: &[&str]| TraceContext::parse([PARENT], headers.iter().copied()).unwrap().tracestate().map(str::to_owned);
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for (headers, expected) in [
            (&["rojo=00f067aa0ba902b7"][..], Some("rojo=00f067aa0ba902b7")),
            (&[" a=1 ,\tb=2,, ", "c=3"], Some("a=1,b=2,c=3")),
            (&["0@tenant/x*_-=a b!~"], Some("0@tenant/x*_-=a b!~")),
            (&[""], None),
            (&[], None),
            (&["a"], None),
            (&["=1"], None),
            (&["a="], None),
            (&["A=1"], None),
            (&["_a=1"], None),
            (&["a=1,b=é"], None),
            (&["a=b=c"], None),
            (&["a=1", "a=2"], None),
            (&["a=1\u{7f}"], None),
            (&[&many(32)], Some(&many(32))),
            (&[&many(33)], None),
            (&[&format!("{}=1", "a".repeat(257))], None),
            (&[&format!("a={}", "1".repeat(257))], None),
        ] {
            assert_eq!(kept(headers).as_deref(), expected, "{headers:?}");
        }
    }

    #[test]
    fn of_too_long_a_tracestate_the_long_ones_go_and_then_the_last() {
        let long = format!("long={}", "x".repeat(200));
        let short = |n: usize| format!("k{n}={}", "y".repeat(90));
        let given = format!("{},{long},{},{long}2,{},{},{},{}", short(1), short(2), short(3), short(4), short(5), short(6));
        let given = given.replace("long=x", "a=x").replacen("a=x", "b=x", 1);
        let kept = parse(PARENT, &given).unwrap();
        let expected: Vec<String> = (1..=5).map(short).collect();
        assert_eq!(kept.tracestate(), Some(expected.join(",").as_str()));
        assert_eq!(TraceContext::from_text(&kept.to_text()), Some(kept));
    }

    #[test]
    fn an_event_s_trace_never_changes_from_release_to_release() {
        let trace = Sampler::new(1.0).trace_of(&named("acme", "evt_1")).unwrap();
        assert_eq!(trace.id.to_string(), "15e62f4ddbe65d453e97bf975bba53e6");
        assert_eq!(trace.publish.to_string(), "3f0bb89549ff3ebd");
        assert_eq!(trace.caller, None);
    }

    #[test]
    fn two_events_have_two_traces() {
        let id = |tenant, id| Sampler::new(1.0).trace_of(&named(tenant, id)).unwrap().id;
        let others = [id("acme", "evt_2"), id("acm", "eevt_1"), id("acme2", "evt_1"), id("acme", "evt_1_"), id("a", "cmeevt_1")];
        assert!(!others.contains(&id("acme", "evt_1")), "{others:?}");
    }

    #[test]
    fn about_as_many_are_looked_at_as_was_asked_for_and_never_others_for_a_larger_share() {
        for (ratio, expected) in [(0.0, 0..1), (0.01, 850..1_150), (0.5, 49_000..51_000), (1.0, 100_000..100_001)] {
            let events = (0..100_000).map(|n| named("acme", &format!("order-{n}")));
            let sampled = events.filter(|event| Sampler::new(ratio).trace_of(event).is_some()).count();
            assert!(expected.contains(&sampled), "{sampled} of 100,000 at {ratio}");
        }
        for n in 0..10_000 {
            let event = named("acme", &format!("order-{n}"));
            let is_sampled = |ratio| Sampler::new(ratio).trace_of(&event).is_some();
            assert!(!is_sampled(0.1) || is_sampled(0.2));
        }
    }

    #[test]
    fn a_caller_with_a_trace_decides() {
        let (sampled, unsampled) = (within(PARENT), within(&PARENT.replace("-01", "-02")));
        for ratio in [0.0, 1.0] {
            let trace = Sampler::new(ratio).trace_of(&sampled).unwrap();
            assert_eq!(trace.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
            assert_eq!(trace.caller.unwrap().to_string(), "00f067aa0ba902b7");
            assert_ne!(trace.publish, trace.caller.unwrap());
            assert_eq!(Sampler::new(ratio).trace_of(&unsampled), None);
        }
        let of_another = Event { id: EventId::parse("evt_2").unwrap(), ..sampled.clone() };
        let publish = |event: &Event| Sampler::new(0.0).trace_of(event).unwrap().publish;
        assert_ne!(publish(&sampled), publish(&of_another), "a batch has one caller and many spans");
    }

    #[test]
    fn a_receiver_is_told_of_the_request_s_span_or_just_what_the_caller_has_said() {
        let bare = event("a", "1");
        let mut told = within(PARENT);
        told.trace = parse(PARENT, "a=1").map(Box::new);
        let post = SpanId::from_draw(7);
        assert_eq!(passed_on(&bare, None), None);
        let verbatim = passed_on(&told, None).unwrap();
        assert_eq!((verbatim.traceparent.as_str(), verbatim.tracestate), (PARENT, Some("a=1")));
        let trace = Sampler::new(0.0).trace_of(&told).unwrap();
        let below = passed_on(&told, Some((trace, post))).unwrap();
        assert_eq!(below.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
        assert_eq!(below.tracestate, Some("a=1"));
        let trace = Sampler::new(1.0).trace_of(&bare).unwrap();
        let below = passed_on(&bare, Some((trace, post))).unwrap();
        assert_eq!(below, PassedOn { traceparent: format!("00-{}-0000000000000007-01", trace.id), tracestate: None });
    }
}
