//! Encryption of the plaintext block with AES-128-ECB: one pass over a block of 16 bytes, four passes over any other length
//! (§5.4.1, §5.4.2).

use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};

const BLOCK: usize = 16;
/// Most bytes of a half of the plaintext block.
const MAX_HALF: usize = 10;

type Half = [u8; MAX_HALF];

/// A key in both directions.
pub(super) struct Cipher {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
}

/// Halves of a block. Of an odd number of bytes each has half of the middle one: the left its first four bits, the right its last.
struct Halves {
    left: Half,
    right: Half,
    /// Bytes of the whole block.
    len: usize,
}

impl Halves {
    fn half_len(&self) -> usize {
        self.len.div_ceil(2)
    }

    fn split(block: &[u8]) -> Self {
        let mut this = Self { left: [0; MAX_HALF], right: [0; MAX_HALF], len: block.len() };
        let half = this.half_len();
        this.left[..half].copy_from_slice(&block[..half]);
        this.right[..half].copy_from_slice(&block[block.len() - half..]);
        this.clear_left();
        this.clear_right();
        this
    }

    fn join(&self, block: &mut [u8]) {
        let half = self.half_len();
        block[self.len - half..].copy_from_slice(&self.right[..half]);
        // The middle byte of an odd number is in both halves.
        let middle = if self.len % 2 == 1 { self.right[0] } else { 0 };
        block[..half].copy_from_slice(&self.left[..half]);
        block[half - 1] |= middle;
    }

    fn clear_left(&mut self) {
        if self.len % 2 == 1 {
            self.left[self.half_len() - 1] &= 0xf0;
        }
    }

    fn clear_right(&mut self) {
        if self.len % 2 == 1 {
            self.right[0] &= 0x0f;
        }
    }
}

impl Cipher {
    pub(super) fn new(key: &[u8; 16]) -> Self {
        let unbound = || UnboundCipherKey::new(&AES_128, key).expect("the key has the cipher's length");
        Self {
            encrypting: EncryptingKey::ecb(unbound()).expect("AES has this mode"),
            decrypting: DecryptingKey::ecb(unbound()).expect("AES has this mode"),
        }
    }

    fn encrypt_block(&self, block: &mut [u8]) {
        self.encrypting.encrypt(block).expect("a whole block");
    }

    /// Encrypts the plaintext block in place.
    pub(super) fn encrypt(&self, block: &mut [u8]) {
        if block.len() == BLOCK {
            self.encrypt_block(block);
            return;
        }
        let mut halves = Halves::split(block);
        for pass in 1..=4 {
            self.pass(&mut halves, pass);
        }
        halves.join(block);
    }

    /// Decrypts it in place.
    pub(super) fn decrypt(&self, block: &mut [u8]) {
        self.decrypt_passes(block, 1);
    }

    /// Decrypts as much as the first `front` bytes take.
    pub(super) fn decrypt_front(&self, block: &mut [u8], front: usize) {
        // Three passes are enough when the front is in the left half alone. Of the middle byte of an odd number it has four bits.
        let is_left = front <= block.len() / 2;
        self.decrypt_passes(block, if is_left { 2 } else { 1 });
    }

    fn decrypt_passes(&self, block: &mut [u8], last: u8) {
        if block.len() == BLOCK {
            self.decrypting.decrypt(block, DecryptionContext::None).expect("a whole block");
            return;
        }
        let mut halves = Halves::split(block);
        for pass in (last..=4).rev() {
            self.pass(&mut halves, pass);
        }
        halves.join(block);
    }

    /// A pass of the Feistel network, which is its own inverse: odd ones change the right half, even ones the left.
    fn pass(&self, halves: &mut Halves, pass: u8) {
        let half = halves.half_len();
        let is_odd = pass % 2 == 1;
        let input = if is_odd { &halves.left } else { &halves.right };
        // The draft's `expand`: the half, zeros, the length of both and the number of the pass.
        let mut block = [0; BLOCK];
        block[..half].copy_from_slice(&input[..half]);
        block[BLOCK - 2] = u8::try_from(halves.len).unwrap_or_default();
        block[BLOCK - 1] = pass;
        self.encrypt_block(&mut block);
        let target = if is_odd { &mut halves.right } else { &mut halves.left };
        target[..half].iter_mut().zip(block).for_each(|(byte, mask)| *byte ^= mask);
        if is_odd {
            halves.clear_right();
        } else {
            halves.clear_left();
        }
    }
}
