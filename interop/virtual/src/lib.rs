//! Differential interoperability in virtual time: two QUIC stacks, one script, a bad network, all from one seed.
//!
//! | file | owns |
//! |---|---|
//! | `pattern` | what every byte of every stream must be |
//! | `plan` | what the two ends do in a run |
//! | `network` | the path of a run |
//! | `peer` | what a stack has to offer, as a trait |
//! | `stacks` | the stacks behind that trait |
//! | `certificates` | chains of chosen sizes, the same bytes each time |
//! | `script` | one end of the script: commands, comparison, what it waits for |
//! | `run` | one seed, one pair: from the plan to a verdict |
//! | `report` | many runs: summary as text and JSON |
//! | `contender`, `shown` | the stacks as contenders of the laboratory, and what their controllers show |
//! | `clock` | virtual time for a stack that reads the clock (feature `quiche`) |

pub mod certificates;
#[cfg(feature = "quiche")]
pub mod clock;
pub mod contender;
pub mod network;
pub mod pattern;
pub mod peer;
pub mod plan;
pub mod report;
pub mod run;
pub mod script;
mod shown;
pub mod stacks;
