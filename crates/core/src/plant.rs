//! Known bugs, to be switched on: the simulator has to find each of them.
//!
//! A check that has never failed proves nothing. These are the mistakes that we would most regret, each built in at the
//! place where it would be made, here or in the engine. Without the feature `plants`, which only the simulator asks for,
//! [`is`] is always false and the compiler leaves all of it out.

macro_rules! plants {
    ($($name:ident $label:literal $what:literal,)*) => {
        /// One known bug.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Plant { $(#[doc = $what] $name,)* }

        impl Plant {
            pub const ALL: &'static [Plant] = &[$(Plant::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Plant::$name => $label,)* }
            }

            /// What goes wrong.
            pub fn what(self) -> &'static str {
                match self { $(Plant::$name => $what,)* }
            }
        }
    };
}

plants! {
    FullBucketAfterCrash "full-bucket-after-crash" "a restart grants a fresh burst",
    NoTokenForRetries "no-token-for-retries" "retries take no token",
    TenantBucketIgnored "tenant-bucket-ignored" "the tenant's bucket is not asked",
    CircuitNeverOpens "circuit-never-opens" "failures are counted and nothing follows",
    ManyProbes "many-probes" "the circuit does not know of its probe",
    LateAnswerClosesCircuit "late-answer-closes-circuit" "any success closes an open circuit",
    ProbeTooEarly "probe-too-early" "a probe goes ten seconds before its time",
    QuietHoursEndEarly "quiet-hours-end-early" "quiet hours end a minute early",
    RetriesIgnoreQuietHours "retries-ignore-quiet-hours" "only first tries are held",
    RetryOvertakesInKey "retry-overtakes-in-key" "a key is free while its head waits for a retry",
    KeyedFromFeed "keyed-from-feed" "a keyed row is sent without asking for the head of its key",
    WindowHidesRows "window-hides-rows" "a full read is taken for all there is",
    HintLost "hint-lost" "a sweep finds rows and nobody reads them",
    StaleReadComesBack "stale-read-comes-back" "what has left comes back with a read that was older",
    OfferedTwice "offered-twice" "a row that a read has brought is taken from the feed again",
    RetryTooEarly "retry-too-early" "half the delay",
    RetryAfterIgnored "retry-after-ignored" "a receiver's wish to wait is not heard",
    LaneHoldIgnored "lane-hold-ignored" "only the delivery that was told waits",
    AttemptNotCounted "attempt-not-counted" "a failed attempt is free",
    LaneCapIgnored "lane-cap-ignored" "an endpoint gets more at once than it takes",
    TenantCapIgnored "tenant-cap-ignored" "a tenant has more in flight than it may",
    PauseIgnored "pause-ignored" "a paused endpoint is called",
    DisabledIsSent "disabled-is-sent" "a disabled endpoint is called",
    DeliverAtIgnored "deliver-at-ignored" "a scheduled event goes at once",
    ExpiredIsSent "expired-is-sent" "what has expired is sent",
    UnsubscribedIsSent "unsubscribed-is-sent" "what was unsubscribed is sent",
    CancelledIsSent "cancelled-is-sent" "a cancelled delivery stays in the window",
    GoneDoesNotDisable "gone-does-not-disable" "a 410 is only a dead delivery",
    GivesUpTooSoon "gives-up-too-soon" "an endpoint is disabled after half of its failures",
    WakeForgotten "wake-forgotten" "a parked lane is not woken",
    YoungestFirst "youngest-first" "a backlog drains from its end",
    PriorityIgnored "priority-ignored" "urgent events wait in line",
    IncidentCapIgnored "incident-cap-ignored" "retries are not capped in an incident",
    TestSendWithoutToken "test-send-without-token" "a test-send takes no token",
    NoSlowStart "no-slow-start" "a lane goes from nothing to everything when its circuit closes",
    HandOverForgetsFlights "hand-over-forgets-flights" "a new owner does not know what the old one has in flight",
    FrozenNodeGoesOn "frozen-node-goes-on" "a node that was frozen past its lease sends on",
    OldEpochIsRecorded "old-epoch-is-recorded" "a record of a node that has lost its lease is taken",
    ReplayOvertakes "replay-overtakes" "a replay goes by the age of its events, before live traffic",
    ReplayIgnoresRate "replay-ignores-rate" "a replay makes its rows as fast as it can",
    TimeoutsFallDaily "timeouts-fall-daily" "a timeout is shortened every day, not every week",
    PinIsLearned "pin-is-learned" "what was learned replaces the value that a person has chosen",
    BlockedKeyBlocksAll "blocked-key-blocks-all" "a key whose head waits keeps other keys waiting",
    TokensComeLate "tokens-come-late" "a lane is woken minutes after its next token",
    SharesIgnored "shares-ignored" "one tenant may take every slot there is",
    NotFoundIsRetried "not-found-is-retried" "permanent answers are tried again",
    DueHeadStaysOut "due-head-stays-out" "a window that is full of heads that are not yet due takes none that is",
    LateHeadStaysOut "late-head-stays-out" "what becomes visible after a higher number of its key waits for that to go",
    RetryGrowsWindow "retry-grows-window" "what waits again after a failure is kept, however full the window is",
    WakeUpsPileUp "wake-ups-pile-up" "a lane that is to be woken at another time keeps the entry before, too",
    CapWithoutReason "cap-without-reason" "what waits for a slot is said to wait for nothing",
    ClockJumpIsBelieved "clock-jump-is-believed" "a wall clock that has jumped by days is believed at once",
    RetentionDeletesWaiting "retention-deletes-waiting" "what has waited for longer than the retention is deleted, not ended",
    // In the engine.
    WithdrawnIsSent "withdrawn-is-sent" "a late read brings back what is being called off, and it is sent",
    LeaseEndIgnored "lease-end-ignored" "an owner whose lease has ended keeps its lanes",
    LeaverSendsOn "leaver-sends-on" "what was given up is begun here all the same",
    StaleConfigurationKept "stale-configuration-kept" "a tenant's version has changed and nothing is read again",
    BodyOfAnother "body-of-another" "a delivery is sent with the payload of its neighbour",
    WrongEpoch "wrong-epoch" "a record goes under the epoch of another partition",
    LaneStateNotWritten "lane-state-not-written" "whoever takes over knows nothing of the circuit",
    RecordAnswerDropped "record-answer-dropped" "that a record was committed is not heard",
    AnswerDropped "answer-dropped" "the answer of a receiver is not written down",
    CancelAnsweredEarly "cancel-answered-early" "a cancel is answered before it is written",
    LateNewsIsSent "late-news-is-sent" "late news of a row that was read, sent and forgotten sends it again",
    NewsAfterReadIsSent "news-after-read-is-sent" "news of a row that a read has brought before sends it again",
    NewsAfterTakeoverIsSent "news-after-takeover-is-sent" "news of a row that the owner before has sent sends it again",
    UnreadableStopsBatch "unreadable-stops-batch" "one endpoint that cannot be read keeps those that are read with it waiting",
    RecordedElsewhereUnheard "recorded-elsewhere-unheard" "nobody hears that the owner before has recorded what it had in flight",
    OlderLaneStateWins "older-lane-state-wins" "a record that is late overwrites what a later one has said of its lane",
    GapScanStartsLate "gap-scan-starts-late" "what the feed has dropped is looked for behind what came after it",
    GapScanStopsEarly "gap-scan-stops-early" "a scan for what the feed has dropped ends with its first page",
    HalfOpenNotWritten "half-open-not-written" "whoever takes over does not know that a probe was sent",
    PanicLeaksCall "panic-leaks-call" "what a call that has panicked was made for is forgotten",
    LeaseCountsFromAnswer "lease-counts-from-answer" "a lease counts from when its renewal was heard of, not from when it was asked for",
    OldClaimGrantsBurst "old-claim-grants-burst" "tokens count from this node's first partition, not from the one that it took over",
}

#[cfg(feature = "plants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Plant>> = const { std::cell::Cell::new(None) };
}

/// Switches one bug on for this thread, or all of them off.
#[cfg(feature = "plants")]
pub fn activate(plant: Option<Plant>) {
    ACTIVE.set(plant);
}

/// Whether this bug is switched on.
#[cfg(feature = "plants")]
pub fn is(plant: Plant) -> bool {
    ACTIVE.get() == Some(plant)
}

/// Whether this bug is switched on: never, in what ships.
#[cfg(not(feature = "plants"))]
pub const fn is(_: Plant) -> bool {
    false
}
