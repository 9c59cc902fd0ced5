//! Cursors over bytes: [`Reader`] reads values from a borrowed slice, [`Writer`] writes them into one. Their methods for varints are in
//! [`varint`](crate::varint).

/// The bytes ended before the value did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end before the value does")]
pub struct Truncated;

/// Takes values from the front of a slice. A read that fails leaves the position where it was.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the slice the reader began with.
    len: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, len: bytes.len() }
    }

    /// Number of bytes read.
    #[inline]
    pub const fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Number of bytes not read yet.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns whether every byte has been read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes not read yet, without reading them.
    #[inline]
    pub const fn peek(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        let (&first, tail) = self.rest.split_first().ok_or(Truncated)?;
        self.rest = tail;
        Ok(first)
    }

    /// Two bytes in network order.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes in network order.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes in network order.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Truncated> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.array()
    }

    /// All that is left; the reader is empty afterwards.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.rest;
        self.rest = &rest[rest.len()..];
        rest
    }
}

/// Writes values into a slice, front to back.
///
/// The caller checks [`remaining`](Self::remaining) first: every write **panics** if it does not fit, and leaves the bytes in an
/// unspecified state.
#[derive(Debug)]
pub struct Writer<'a> {
    buf: &'a mut [u8],
    position: usize,
}

impl<'a> Writer<'a> {
    /// A writer at the start of `buf`.
    #[inline]
    pub const fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, position: 0 }
    }

    /// Number of bytes written.
    #[inline]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Number of bytes that still fit.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.buf.len() - self.position
    }

    /// Skips `len` bytes, which the caller fills.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub fn skip(&mut self, len: usize) {
        assert!(len <= self.remaining(), "{len} bytes do not fit");
        self.position += len;
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.buf[self.position] = value;
        self.position += 1;
    }

    /// Two bytes in network order.
    #[inline]
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    /// Four bytes in network order.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// Eight bytes in network order.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// Writes bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len()).copy_from_slice(bytes);
    }

    /// `n` bytes for the caller to fill; they hold what the buffer held before.
    #[inline]
    pub fn reserve(&mut self, n: usize) -> &mut [u8] {
        let start = self.position;
        let place = &mut self.buf[start..start + n];
        self.position += n;
        place
    }

    /// Written bytes.
    #[inline]
    pub fn written(&self) -> &[u8] {
        &self.buf[..self.position]
    }

    /// Written bytes, for changing a field whose value was not known before.
    #[inline]
    pub fn written_mut(&mut self) -> &mut [u8] {
        &mut self.buf[..self.position]
    }

    /// Takes back everything after `position`.
    ///
    /// # Panics
    /// When the position is beyond the written bytes.
    #[inline]
    pub fn rewind(&mut self, position: usize) {
        assert!(position <= self.position, "rewind goes back, not forward");
        self.position = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_in_order() {
        let mut buf = [0; 24];
        let mut w = Writer::new(&mut buf);
        w.u8(1);
        w.u16(0x0203);
        w.u32(0x0405_0607);
        w.u64(0x0809_0a0b_0c0d_0e0f);
        w.bytes(b"abc");
        assert_eq!((w.position(), w.remaining()), (18, 6));
        assert_eq!(&w.written()[..7], &[1, 2, 3, 4, 5, 6, 7]);

        let bytes = w.written().to_vec();
        let mut r = Reader::new(&bytes);
        assert_eq!(r.u8(), Ok(1));
        assert_eq!(r.u16(), Ok(0x0203));
        assert_eq!(r.u32(), Ok(0x0405_0607));
        assert_eq!(r.u64(), Ok(0x0809_0a0b_0c0d_0e0f));
        assert_eq!((r.position(), r.remaining()), (15, 3));
        assert_eq!(r.bytes(usize::MAX), Err(Truncated));
        assert_eq!(r.rest(), b"abc");
        assert_eq!((r.position(), r.remaining()), (18, 0));
        assert!(r.is_empty());
        assert_eq!(r.u8(), Err(Truncated));
    }

    #[test]
    fn reserved_bytes_can_be_patched_and_taken_back() {
        let mut buf = [0; 8];
        let mut w = Writer::new(&mut buf);
        w.reserve(2).fill(7);
        w.u8(1);
        w.written_mut()[0] = 9;
        assert_eq!(w.written(), [9, 7, 1]);
        w.rewind(1);
        w.u8(2);
        assert_eq!(w.written(), [9, 2]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_write_beyond_the_end_panics() {
        Writer::new(&mut [0; 3]).u32(0);
    }
}
