//! Contenders of the laboratory in real time, on one emulated path: our stacks with real sockets, the kernel's TCP with TLS 1.3 and
//! HTTP/2, and servers and clients of any kind as commands.
//!
//! Each run has its own network ([`emu::network`]), so no state passes from one run to the next: neither routes nor TCP's metrics.
//! Workloads, figures, records and checks are the code of the simulator.
//!
//! Linux only.
#![cfg(target_os = "linux")]

mod agreement;
mod directory;
mod ends;
mod files;
mod http1;
mod http2;
mod kernel;
mod nodes;
mod pool;
mod programs;
mod recipe;
mod run;
mod seat;
mod tls;
mod watch;

pub use agreement::{Agreement, agreements, runs_to_simulate};
pub use directory::PrivateDirectory;
pub use kernel::{KERNEL, Kernel, others};
pub use programs::find_program;
pub use run::{Conditions, Repeats, run_one, run_watched};
pub use watch::{Sender, Watch};
