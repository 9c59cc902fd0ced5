//! Encoder: source symbols in, repair symbols out.

use std::collections::VecDeque;

use crate::{
    kernel::{Kernel, Term, Twin},
    repair::Repair,
    symbol::{Coded, PREFIX},
};

/// Terms that are added up in one go: enough that the sum stays in registers for long, few enough for the stack.
const CHUNK: usize = 16;

/// Encoder: keeps the latest source symbols and combines them.
///
/// Holds at most `capacity` symbols; a new one takes the place of the oldest.
#[derive(Debug)]
pub struct Encoder {
    kernel: Kernel,
    capacity: usize,
    /// Number of the first symbol held.
    first: u64,
    /// Coded, each in a buffer that is used again.
    symbols: VecDeque<Coded>,
    sum: Coded,
    /// A repair symbol that was made together with another, and its length.
    twin: Coded,
    twin_is: Option<(Repair, usize)>,
    /// Last requested repair and its length: the request for the length precedes the one for the symbol.
    measured: Option<(Repair, usize)>,
}

impl Encoder {
    /// Without symbols; the first symbol gets the ID 0.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(kernel: Kernel, capacity: usize) -> Self {
        assert!(capacity > 0, "an encoder holds at least one symbol");
        Self {
            kernel,
            capacity,
            first: 0,
            symbols: VecDeque::new(),
            sum: Coded::default(),
            twin: Coded::default(),
            twin_is: None,
            measured: None,
        }
    }

    /// The number that the next symbol gets.
    #[inline]
    pub fn next_id(&self) -> u64 {
        self.first + self.symbols.len() as u64
    }

    /// The oldest symbol held.
    #[inline]
    pub fn first_id(&self) -> u64 {
        self.first
    }

    /// Takes in a source symbol, and returns its number.
    ///
    /// # Panics
    /// When it has more than 65,535 bytes.
    // Never inlined, as `repair`: profiles tell by these names what coding takes.
    #[inline(never)]
    pub fn push(&mut self, content: &[u8]) -> u64 {
        let id = self.next_id();
        let mut buffer = if self.symbols.len() == self.capacity {
            self.first += 1;
            self.symbols.pop_front().unwrap_or_default()
        } else {
            Coded::default()
        };
        buffer.fill(content);
        self.measured = None;
        self.symbols.push_back(buffer);
        id
    }

    /// Bytes of a repair symbol; `None` when a source symbol of it is not held.
    pub fn repair_len(&mut self, repair: &Repair) -> Option<usize> {
        if let Some((known, len)) = self.measured.or(self.twin_is)
            && known == *repair
        {
            return Some(len);
        }
        let mut place = self.place(repair.first)?;
        self.place(repair.last())?;
        let mut longest = 0;
        for _ in 0..repair.count {
            longest = longest.max(self.symbols[place].content_len());
            place += usize::from(repair.stride);
        }
        let len = PREFIX + longest;
        self.measured = Some((*repair, len));
        Some(len)
    }

    /// Repair symbol; `None` if the encoder does not hold one of its source symbols. `next` is the next requested repair: if that combines
    /// the same symbols, both are computed at once.
    #[inline(never)]
    pub fn repair(&mut self, repair: &Repair, next: Option<&Repair>) -> Option<&[u8]> {
        debug_assert_eq!(repair.check(), Ok(()));
        if let Some((_, len)) = self.twin_is.take_if(|(twin, _)| twin == repair) {
            return Some(&self.twin[..len]);
        }
        if let Some(next) = next
            && self.kernel.has_twins()
            && (Repair { row: repair.row, ..*next }) == *repair
        {
            return self.twins(repair, next);
        }
        let len = self.repair_len(repair)?;
        let base = self.first;
        self.sum.zero(len);
        let mut terms = [Term { coefficient: 0, data: &[] }; CHUNK];
        let mut count = 0;
        for (id, coefficient) in repair.terms() {
            terms[count] = Term { coefficient, data: &self.symbols[(id - base) as usize] };
            count += 1;
            if count == CHUNK {
                self.kernel.add_products(&mut self.sum, &terms);
                count = 0;
            }
        }
        self.kernel.add_products(&mut self.sum, &terms[..count]);
        Some(&self.sum[..len])
    }

    /// Two repair symbols over the same source symbols: the first, and the second for later.
    fn twins(&mut self, repair: &Repair, next: &Repair) -> Option<&[u8]> {
        let len = self.repair_len(repair)?;
        let base = self.first;
        self.sum.zero(len);
        self.twin.zero(len);
        let mut terms = [Twin { coefficients: [0; 2], data: &[] }; CHUNK];
        let mut count = 0;
        for ((id, a), (_, b)) in repair.terms().zip(next.terms()) {
            terms[count] = Twin { coefficients: [a, b], data: &self.symbols[(id - base) as usize] };
            count += 1;
            if count == CHUNK {
                self.kernel.add_twins([&mut self.sum, &mut self.twin], &terms);
                count = 0;
            }
        }
        self.kernel.add_twins([&mut self.sum, &mut self.twin], &terms[..count]);
        self.twin_is = Some((*next, len));
        Some(&self.sum[..len])
    }

    /// Bytes of memory held beside the struct itself.
    pub fn memory(&self) -> usize {
        self.symbols.iter().map(Coded::capacity).sum::<usize>()
            + self.symbols.capacity() * size_of::<Coded>()
            + self.sum.capacity()
    }

    fn place(&self, id: u64) -> Option<usize> {
        let place = usize::try_from(id.checked_sub(self.first)?).ok()?;
        (place < self.symbols.len()).then_some(place)
    }
}
