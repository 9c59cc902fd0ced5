//! Tests of streams as a whole: two endpoints, connected at the level of frames.

mod attack;
mod behaviour;
mod flow;
mod model;
mod pair;
mod reset_at;
mod reset_at_peer;
