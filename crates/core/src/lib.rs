//! Decides what happens to a delivery.
//!
//! Nothing in here reads a clock, rolls dice, opens a file or waits. Time is an
//! argument, jitter is computed from ids, and the answer is data that somebody
//! else carries out. That is why years of deliveries can be simulated in seconds,
//! and why two nodes that are given the same facts decide the same.
//!
//! Where to look:
//!
//! | question | module |
//! |---|---|
//! | What is an id, an event, an endpoint, a tenant? | [`id`], [`event`], [`endpoint`], [`tenant`], [`catalogue`] |
//! | Who gets this event? | [`route`], [`filter`] over [`json`] |
//! | What does this answer mean? | [`delivery`], [`retry_after`] |
//! | When is the next try? | [`retry`], with [`jitter`] |
//! | May this endpoint be sent to now? | [`circuit`], [`bucket`], [`quiet_hours`] |
//! | How long do we wait for an answer? | [`timeout`], fed by [`latency`] |
//! | How is this endpoint doing? | [`health`] |
//! | Who is told of it, and how often? | [`notice`] |
//! | May a delivery go to this URL, to this address? | [`destination`] |
//! | Who goes next? | [`scheduler`] |
//! | Why does this delivery wait? | [`admission`] |
//! | What may be deleted, and how fast? | [`retention`] |
//! | Which trace does an event belong to, and who looks at it? | [`trace`] |

pub mod admission;
pub mod bucket;
pub mod catalogue;
pub mod circuit;
pub mod clock_guard;
pub mod delivery;
pub mod destination;
pub mod endpoint;
pub mod estimate;
pub mod event;
pub mod filter;
pub mod health;
pub mod id;
pub mod jitter;
pub mod json;
pub mod latency;
pub mod notice;
pub mod plant;
pub mod quiet_hours;
pub mod replay_pace;
pub mod retention;
pub mod retry;
pub mod retry_after;
pub mod route;
pub mod scheduler;
pub mod tenant;
pub mod text;
pub mod time;
pub mod timeout;
pub mod trace;
