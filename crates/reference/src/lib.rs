//! Independent references: small programs that solve the checked problems by other methods, for tests only.
//!
//! | reference | checked code |
//! |---|---|
//! | [`queue`]: the recursion of Lindley | rate, queue and waits of a link |
//! | [`bucket`]: the generic cell rate algorithm | the policer's token bucket |
//! | [`chain`]: shares and runs of a two-state chain, by its transition matrix | laws of loss |
//! | [`field`]: rank of matrices over GF(256), multiplied bit by bit | which losses the decoder repairs |
//! | [`window`]: windows packet by packet | NewReno and CUBIC in the simulator |
//! | [`fluid`]: fluid model of flows with a target delay | equilibrium of `auto` |
//! | [`share`]: two windows at one queue, packet by packet | NewReno's share beside CUBIC |
//!
//! The crate has no dependencies, so that both sides share no mistake. Tests draw their cells from a seed of the day ([`day`]). Comparisons
//! are exact, or allow six standard deviations, or use verified cells only, so that no day fails by chance.

pub mod bucket;
pub mod chain;
pub mod day;
pub mod draws;
pub mod field;
pub mod fluid;
pub mod queue;
pub mod share;
pub mod window;
