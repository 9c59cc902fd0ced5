//! No key on other processors.

use std::convert::Infallible;

use crate::{NONCE_LEN, TAG_LEN};

/// A key, of which there is none on this processor.
#[derive(Debug)]
pub struct Key(Infallible);

impl Key {
    /// Returns `None`.
    pub fn new(_key: &[u8]) -> Option<Self> {
        None
    }

    /// Is never called.
    pub fn seal(&self, _nonce: &[u8; NONCE_LEN], _header: &[u8], _text: &mut [u8], _tail: &[u8]) -> [u8; TAG_LEN] {
        match self.0 {}
    }

    /// Is never called.
    pub fn open(&self, _nonce: &[u8; NONCE_LEN], _header: &[u8], _text: &mut [u8], _tag: &[u8; TAG_LEN]) -> bool {
        match self.0 {}
    }
}
