//! AES-GCM (NIST SP 800-38D) for packets, on x86-64 processors with VAES, VPCLMULQDQ and AVX-512.
//!
//! A library's AES-GCM has a fixed cost for each call, which is two fifths of the time of a full packet (`docs/performance.md`). Here a call
//! keeps its state in registers: four blocks of AES in each instruction, products of up to 17 blocks between two reductions of GHASH.
//!
//! # Constant time
//!
//! Branches and addresses depend on lengths only, which are public: there is no table that is indexed by data, and no early end of a
//! comparison. The instructions that handle keys and text (AESENC, PCLMULQDQ, their vector forms, shuffles with constant masks, logic,
//! shifts and additions) are among those whose time does not depend on operands ("Data Operand Independent Timing Instructions",
//! Intel). `examples/timing.rs` looks for a difference by measurement.
//!
//! A key is overwritten when it is dropped. What is left of it in registers and on the stack is not.
//!
//! # Example
//! ```
//! use gcm::Key;
//!
//! // Nothing on another processor: then a library seals.
//! if let Some(key) = Key::new(&[7; 16]) {
//!     let mut text = *b"hello";
//!     let tag = key.seal(&[0; 12], b"header", &mut text, &[]);
//!     assert!(key.open(&[0; 12], b"header", &mut text, &tag));
//!     assert_eq!(&text, b"hello");
//! }
//! ```

#[cfg(not(target_arch = "x86_64"))]
mod absent;
#[cfg(target_arch = "x86_64")]
mod ghash;
#[cfg(target_arch = "x86_64")]
mod key;
#[cfg(target_arch = "x86_64")]
mod schedule;
#[cfg(target_arch = "x86_64")]
mod vector;

#[cfg(not(target_arch = "x86_64"))]
pub use absent::Key;
#[cfg(target_arch = "x86_64")]
pub use key::Key;

/// Bytes of a tag.
pub const TAG_LEN: usize = 16;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
