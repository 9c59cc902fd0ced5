//! The laboratory: real stacks on modelled paths, and what can be said about them.
//!
//! ```text
//! scenario.toml → matrix → run → records → statistics → report
//! ```
//!
//! Each arrow is a module: [`scenario`] reads the file, [`matrix`] spreads it over contenders and seeds, [`run`] executes
//! each cell in the simulator, [`measure`] turns counters into figures, [`record`] writes and reads them, [`stats`] says
//! what they show, [`report`] prints it. [`experiment`] is all of it in a row, with the [`selftest`] that a report starts
//! with; [`mod@reference`] holds experiments with known answers. [`contender`] is the seam to the stacks that are compared: a sans-IO stack joins through [`host`] and [`stack`],
//! and the [`workload`]s run on it. [`tiderace`] is our own. [`suite`] plays the example cases
//! of the BBR draft.

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
pub mod plan;
pub mod qlog;
pub mod reading;
pub mod record;
pub mod reference;
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
pub mod versus;
pub mod view;
pub mod workload;
