//! The links of `netem` in real time: a relay for UDP, and emulated networks for any program ([`network`]).
//!
//! A [`Relay`] forwards UDP between a client and a server. It listens on one address, forwards to another, and sends each direction through
//! a link with rate, queue, delay, loss and so on. It needs no privileges and works with any program over UDP. The links are the types that
//! the simulator runs in virtual time.
//!
//! Accuracy: the link computes a packet's departure from the time at which the *kernel* received it. The packet then waits in a queue for
//! its departure. A late wake-up of a thread delays single packets by microseconds, but errors do not add up: the rate is exact. The
//! lateness of packets is measured and reported ([`Statistics::lateness`]).
//!
//! Linux only: kernel receive times, nanosecond timers and batched system calls.

mod config;
mod error;
mod statistics;

#[cfg(target_os = "linux")]
mod clients;
#[cfg(target_os = "linux")]
mod event_loop;
#[cfg(target_os = "linux")]
mod lead;
#[cfg(target_os = "linux")]
pub mod network;
#[cfg(target_os = "linux")]
mod pending;
#[cfg(target_os = "linux")]
mod relay;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "timerfd, epoll, recvmmsg and sendmmsg have no safe interface in std or socket2")]
mod sys;
#[cfg(target_os = "linux")]
mod translation;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(not(target_os = "linux"))]
#[path = "unsupported.rs"]
mod relay;

pub use config::RelayConfig;
pub use error::RelayError;
pub use relay::Relay;
pub use statistics::Statistics;
