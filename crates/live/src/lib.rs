//! Contenders of the laboratory in real time, on one emulated path: our own stacks, whose simulated nodes get real sockets, and the
//! kernel's TCP with TLS 1.3 and HTTP/2.
//!
//! A run makes a network of its own ([`emu::network`]), so that nothing is remembered from one run to the next: neither routes nor TCP's
//! metrics. The workloads are those of the simulator, the very same code at both ends; so are figures, records and checks.
//!
//! Linux only.
#![cfg(target_os = "linux")]

mod agreement;
mod http2;
mod kernel;
mod nodes;
mod run;
mod tls;

pub use agreement::{Agreement, agreements};
pub use kernel::{KERNEL, Kernel, others};
pub use run::{Tolerated, run_one};
