//! Moves rows from an application's outbox into the store.
//!
//! An application writes events into a table of its own PostgreSQL, in its own transactions. A relay moves what was committed into
//! the store, through the same checks and the same verb as the API, and removes it from the table: every row that was committed
//! becomes one event, and one that was rolled back becomes none.
//!
//! | question | file |
//! |---|---|
//! | What does the application see? | `outbox.sql`, `functions.sql` |
//! | What is asked of the application's database? | [`outbox`] |
//! | How are rows moved, and what if something dies meanwhile? | [`relay`] |
//! | What becomes of a row that is not taken? | [`decision`] |

pub mod decision;
pub mod outbox;
pub mod relay;

pub use outbox::{FailedRow, Installed, OutboxBacklog, OutboxError, Status, check_url, install, status, uninstall};
pub use relay::{Options, run};
