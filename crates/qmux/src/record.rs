//! Records: a length, and this number of bytes of frames (§3.2 of the draft).

use wire::{Reader, varint};

/// Largest record that every endpoint accepts, in bytes of frames (§5.2).
pub const DEFAULT_MAX: u64 = 16_382;

/// A record is larger than was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {0} bytes")]
pub struct TooLarge(pub u64);

/// Splits bytes into records. Holds at most one incomplete record.
#[derive(Debug)]
pub struct Records {
    max: u64,
    /// The beginning of a record.
    kept: Vec<u8>,
}

impl Records {
    /// Takes records of at most `max` bytes of frames.
    pub fn new(max: u64) -> Self {
        Self { max, kept: Vec::new() }
    }

    /// Passes the complete records in `bytes`, with the rest of earlier ones, to `take`, in order, until that fails.
    ///
    /// # Errors
    /// When a record is too large, before it has arrived; and those of `take`.
    pub fn feed<E: From<TooLarge>>(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() || !self.kept.is_empty() {
            if self.kept.is_empty() {
                // Records that came whole are not copied.
                match self.size(bytes)? {
                    Some((head, size)) if bytes.len() >= head + size => {
                        take(&bytes[head..head + size])?;
                        bytes = &bytes[head + size..];
                    }
                    _ => {
                        self.kept.extend_from_slice(bytes);
                        return Ok(());
                    }
                }
                continue;
            }
            let wanted = match self.size(&self.kept)? {
                Some((head, size)) => head + size,
                // One byte more may complete the length.
                None => self.kept.len() + 1,
            };
            let more = (wanted - self.kept.len()).min(bytes.len());
            self.kept.extend_from_slice(&bytes[..more]);
            bytes = &bytes[more..];
            match self.size(&self.kept)? {
                Some((head, size)) if self.kept.len() == head + size => {
                    let whole = std::mem::take(&mut self.kept);
                    take(&whole[head..])?;
                    // The memory serves the next one.
                    self.kept = whole;
                    self.kept.clear();
                }
                _ if bytes.is_empty() => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Bytes of the length, and the length; `None` while that is not complete.
    fn size(&self, bytes: &[u8]) -> Result<Option<(usize, usize)>, TooLarge> {
        let mut reader = Reader::new(bytes);
        let Ok(size) = reader.varint() else { return Ok(None) };
        if size > self.max {
            return Err(TooLarge(size));
        }
        Ok(Some((reader.position(), usize::try_from(size).map_err(|_| TooLarge(size))?)))
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> usize {
        self.kept.capacity()
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}

/// Appends a record to `out`.
pub fn push(out: &mut Vec<u8>, frames: &[u8]) {
    varint::push(out, frames.len() as u64);
    out.extend_from_slice(frames);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(bytes: &[u8], at: &[usize]) -> Result<Vec<Vec<u8>>, TooLarge> {
        let mut records = Records::new(100);
        let mut seen = Vec::new();
        let mut rest = bytes;
        let pieces = at.iter().map(|at| at % 37 + 1).chain(std::iter::repeat(usize::MAX));
        for piece in pieces {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            records.feed(now, |record| {
                seen.push(record.to_vec());
                Ok::<_, TooLarge>(())
            })?;
            assert!(records.kept() <= 108);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        Ok(seen)
    }

    proptest! {
        #[test]
        fn records_come_out_however_the_bytes_are_cut(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20),
            at in prop::collection::vec(any::<usize>(), 0..60),
        ) {
            let mut bytes = Vec::new();
            sent.iter().for_each(|record| push(&mut bytes, record));
            prop_assert_eq!(cut(&bytes, &at), Ok(sent));
        }
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_there() {
        let mut records = Records::new(DEFAULT_MAX);
        let mut length = Vec::new();
        varint::push(&mut length, DEFAULT_MAX + 1);
        let took = records.feed(&length, |_| Ok::<_, TooLarge>(()));
        assert_eq!(took, Err(TooLarge(DEFAULT_MAX + 1)));
        assert_eq!(records.kept(), 0);
    }
}
