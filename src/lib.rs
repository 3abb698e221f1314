//! hangscope names the deadlock of a hung process: who holds what, who waits for whom, and why that is a cycle.
//!
//! A hung process walks in at one end, a sentence walks out at the other:
//!
//! ```text
//! target ──▶ snapshot ──▶ stacks ──▶ facts ──▶ graph ──▶ verdict ──▶ report
//! ```
//!
//! Each room takes what the room before made and returns its own value. [`diagnose`] is the corridor: the only
//! module that knows all the rooms. `tests/floorplan.rs` holds the table of who may import whom.

#![deny(unsafe_code)]
// what comes from a target is hostile: nothing in the library may panic on it (tests may)
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented
    )
)]

pub mod arch;
pub mod cli;
pub mod commands;
pub mod diagnose;
pub mod elf;
pub mod facts;
pub mod graph;
pub mod layout;
pub mod memory;
pub mod report;
pub mod runtimes;
pub mod snapshot;
pub mod target;
pub mod units;
pub mod unwind;
pub mod verdict;
