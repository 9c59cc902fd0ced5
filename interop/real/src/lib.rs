//! Interoperability over real UDP sockets.
//!
//! Every peer is a program with one contract, whatever language it is written in, so that the driver (`main.rs`) can put
//! any client before any server. See `README.md` beside this workspace for the contract in words.
//!
//! | file | owns |
//! |---|---|
//! | `contract` | arguments, pattern, request lines, answers and the JSON result of a peer |
//! | `credentials` | the certificates of a run, as PEM files |
//! | `tap` | a UDP relay that watches the wire, and is the NAT of some cases |
//! | `peers` | the peers there are, how each is installed and started |
//! | `case` | the cases: arguments, links, who can take part, evidence |
//! | `matrix` | who meets whom in which case, and the verdicts |
//! | `bin/quinn_peer` | the peer on quinn |

pub mod case;
pub mod contract;
pub mod credentials;
pub mod matrix;
pub mod peers;
pub mod spoil;
pub mod tap;
