//! The laboratory: experiments with real stacks on modelled paths, and their statistics.
//!
//! ```text
//! scenario.toml → matrix → run → records → statistics → report
//! ```
//!
//! The modules, in this order:
//!
//! - [`scenario`] reads the file; [`matrix`] lists its runs, one for each point, contender and seed.
//! - [`run`] executes a run in the simulator; [`measure`] computes figures from counters; [`record`] writes and reads them.
//! - [`stats`] compares contenders; [`report`] prints the result.
//! - [`experiment`] does all of this, with the [`selftest`] at the start; [`mod@reference`] has experiments with known answers.
//! - [`contender`] is the interface of the compared stacks: a sans-IO stack joins through [`host`] and [`stack`], and the [`workload`]s run
//!   on it. [`tiderace`] is our stack.
//! - [`trial`] compares clients of a gateway over QUIC with clients over TCP.
//! - [`suite`] runs the example test cases of the BBR draft.

mod breach;
mod digest;

pub mod audit;
pub mod books;
pub mod campaign;
#[cfg(feature = "columns")]
pub mod columns;
pub mod compare;
pub mod contender;
pub mod diagnosis;
pub mod experiment;
pub mod figure;
pub mod gate;
pub mod host;
pub mod journal;
pub mod kind;
pub mod matrix;
pub mod measure;
pub mod noise;
pub mod plan;
pub mod qlog;
pub mod reading;
pub mod record;
pub mod reference;
pub mod regret;
pub mod report;
pub mod residual;
pub mod rivals;
pub mod roster;
pub mod run;
pub mod scenario;
pub mod selftest;
pub mod settings;
pub mod spread;
pub mod stack;
pub mod stats;
pub mod suite;
pub mod summary;
pub mod tally;
pub mod throttle;
pub mod tiderace;
mod tls;
pub mod trial;
pub mod tunnel;
pub mod tunnelling;
pub mod versus;
pub mod view;
pub mod watch;
pub mod workload;
