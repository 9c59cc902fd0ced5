//! Decoder: arrived symbols in, lost symbols out.
//!
//! Repair symbols that cannot be used at once are kept as equations over the missing symbols, in reduced echelon form with the oldest
//! unknown of each as its pivot. So a symbol is returned as soon as the received symbols determine it, and a forgotten unknown removes one
//! equation only.

use std::{collections::VecDeque, fmt};

use crate::{
    gf,
    kernel::Kernel,
    repair::Repair,
    symbol::{self, Coded},
    work::{TERM, Work, WorkLimit},
};

/// Equations that are kept at most. The one with the oldest unknown goes first.
const MAX_EQUATIONS: usize = 128;

/// Symbols contradict each other: the sender did not combine what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction(
    /// Contradiction found.
    pub &'static str,
);

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Contradiction {}

/// State of a source symbol on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sourced {
    /// Not known before.
    New,
    /// Recovered before it arrived.
    Known,
    /// Older than the decoder's window.
    Old,
}

/// Result of a repair symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// Nothing was missing, or the symbol adds no information.
    Spare,
    /// Combines symbols that are no longer remembered.
    Late,
    /// Refused: the symbols that arrived do not justify the work.
    Refused,
    /// Added an equation. [`Decoder::next_recovered`] returns symbols that this recovered.
    Used,
}

/// Counts since the beginning, in symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderFigures {
    /// Source symbols that arrived.
    pub sources: u64,
    /// Repair symbols that arrived.
    pub repairs: u64,
    /// Source symbols that were rebuilt.
    pub recovered: u64,
    /// Source symbols that arrived after they had been rebuilt.
    pub recovered_needlessly: u64,
    /// Source symbols that were forgotten without having arrived or been rebuilt.
    pub unrecovered: u64,
    /// Repair symbols without new information.
    pub spare: u64,
    /// Repair symbols over symbols that were no longer remembered.
    pub late: u64,
    /// Repair symbols, and their equations, that were dropped because their work exceeded the budget.
    pub refused: u64,
    /// Operations: bytes multiplied and added, and for each term of an equation as many as it costs.
    pub work: u64,
}

/// A source symbol that is remembered or waited for.
#[derive(Debug, Default)]
struct Slot {
    /// Coded; empty while it is missing.
    coded: Coded,
    recovered: bool,
}

/// A linear combination of missing symbols whose value is known.
#[derive(Debug)]
struct Equation {
    /// Missing symbols with their coefficients, ascending; the first is the pivot, with coefficient 1.
    terms: Vec<(u64, u8)>,
    value: Coded,
}

/// Decoder: keeps a sender's latest source symbols and recovers missing ones.
///
/// After each symbol, drain [`next_recovered`](Self::next_recovered). Memory is bounded: `capacity` source symbols and 128
/// equations of no more than a packet each.
#[derive(Debug)]
pub struct Decoder {
    kernel: Kernel,
    capacity: u64,
    /// Number of the oldest symbol that is remembered.
    base: u64,
    slots: VecDeque<Slot>,
    equations: Vec<Equation>,
    recovered: VecDeque<u64>,
    /// Buffers to be used again.
    spare: Vec<Coded>,
    figures: DecoderFigures,
    work: Work,
}

impl Decoder {
    /// Remembers the `capacity` latest symbols.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(kernel: Kernel, capacity: u64) -> Self {
        assert!(capacity > 0, "a decoder remembers at least one symbol");
        Self {
            kernel,
            capacity,
            base: 0,
            slots: VecDeque::new(),
            equations: Vec::new(),
            recovered: VecDeque::new(),
            spare: Vec::new(),
            figures: DecoderFigures::default(),
            work: Work::default(),
        }
    }

    /// Limits the work to that paid for by received bytes. Repair symbols beyond it are refused, as if they had been lost.
    pub fn limited(mut self, limit: WorkLimit) -> Self {
        self.work = Work::limited(limit);
        self
    }

    /// Counts since the beginning.
    pub fn figures(&self) -> DecoderFigures {
        DecoderFigures { work: self.work.spent(), ..self.figures }
    }

    /// One more than the highest symbol that is known to have been sent.
    #[inline]
    pub fn next_id(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// Number of remembered symbols that are missing.
    pub fn missing(&self) -> usize {
        self.slots.iter().filter(|slot| slot.coded.is_empty()).count()
    }

    /// Returns whether a symbol was rebuilt, and has not arrived.
    #[inline]
    pub fn was_recovered(&self, id: u64) -> bool {
        self.slot(id).is_some_and(|slot| slot.recovered)
    }

    /// A source symbol that arrived or was rebuilt, while it is remembered.
    pub fn symbol(&self, id: u64) -> Option<&[u8]> {
        self.slot(id).filter(|slot| !slot.coded.is_empty()).and_then(|slot| symbol::read(&slot.coded))
    }

    /// The next symbol that was rebuilt since this was asked last.
    pub fn next_recovered(&mut self) -> Option<(u64, &[u8])> {
        let id = self.recovered.pop_front()?;
        let slot = self.slot(id)?;
        Some((id, symbol::read(&slot.coded)?))
    }

    /// A source symbol arrived.
    ///
    /// # Errors
    /// When it arrived before, or is not what was rebuilt.
    pub fn on_source(&mut self, id: u64, content: &[u8]) -> Result<Sourced, Contradiction> {
        self.figures.sources += 1;
        if id < self.base {
            return Ok(Sourced::Old);
        }
        let next = self.next_id();
        if id >= next {
            self.advance(id + 1);
        }
        let mut coded = self.spare.pop().unwrap_or_default();
        coded.fill(content);
        let place = (id - self.base) as usize;
        let slot = &mut self.slots[place];
        if !slot.coded.is_empty() {
            if !std::mem::take(&mut slot.recovered) {
                return Err(Contradiction("a symbol ID was used twice"));
            }
            let same = slot.coded[..] == coded[..];
            self.recycle(coded);
            if !same {
                return Err(Contradiction("a symbol is not what repair symbols said"));
            }
            self.figures.recovered_needlessly += 1;
            return Ok(Sourced::Known);
        }
        slot.coded = coded;
        self.work.earn_source(content.len());
        // A symbol that nothing spoke of before is in no equation.
        if id < next && !self.equations.is_empty() {
            self.substitute(id)?;
        }
        Ok(Sourced::New)
    }

    /// A repair symbol arrived; [`Repair::check`] has passed.
    ///
    /// # Errors
    /// When it contradicts other symbols, as far as this can be detected.
    pub fn on_repair(&mut self, repair: &Repair, value: &[u8]) -> Result<Repaired, Contradiction> {
        debug_assert_eq!(repair.check(), Ok(()));
        self.figures.repairs += 1;
        if repair.first < self.base {
            self.figures.late += 1;
            return Ok(Repaired::Late);
        }
        self.work.earn(value.len());
        if !self.work.is_left() {
            self.figures.refused += 1;
            return Ok(Repaired::Refused);
        }
        if repair.last() >= self.next_id() {
            // Symbols that it combines were sent.
            self.advance(repair.last() + 1);
            if repair.first < self.base {
                self.figures.late += 1;
                return Ok(Repaired::Late);
            }
        }
        self.work.spend(usize::from(repair.count) * TERM);
        let slot = |id: u64| &self.slots[(id - self.base) as usize];
        let terms: Vec<_> = repair.terms().filter(|(id, _)| slot(*id).coded.is_empty()).collect();
        if terms.is_empty() {
            self.figures.spare += 1;
            return Ok(Repaired::Spare);
        }
        let mut sum = self.spare.pop().unwrap_or_default();
        sum.copy(value);
        for (id, coefficient) in repair.terms() {
            let coded = &self.slots[(id - self.base) as usize].coded;
            if !coded.is_empty() {
                self.work.spend(coded.len());
                subtract(self.kernel, &mut sum, coefficient, coded)?;
            }
        }
        if self.insert(Equation { terms, value: sum })? {
            Ok(Repaired::Used)
        } else {
            self.figures.spare += 1;
            Ok(Repaired::Spare)
        }
    }

    /// Bytes of memory held beside the struct itself.
    pub fn memory(&self) -> usize {
        let equation = |e: &Equation| e.terms.capacity() * size_of::<(u64, u8)>() + e.value.capacity();
        self.slots.iter().map(|slot| slot.coded.capacity()).sum::<usize>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.equations.iter().map(equation).sum::<usize>()
            + self.equations.capacity() * size_of::<Equation>()
            + self.spare.iter().map(Coded::capacity).sum::<usize>()
            + self.recovered.capacity() * size_of::<u64>()
    }

    /// Forgets symbols, the oldest first, until no more than `bytes` are held or none is left.
    pub fn limit_memory(&mut self, bytes: usize) {
        let mut held = self.memory();
        while held > bytes && !self.slots.is_empty() {
            let equations = self.equations.len();
            let coded = self.slots.front().map_or(0, |slot| slot.coded.capacity());
            self.forget_oldest();
            self.spare = Vec::new();
            held = if self.equations.len() == equations { held - coded } else { self.memory() };
        }
        if self.slots.is_empty() {
            // What they were over is not remembered any more.
            (self.slots, self.equations, self.recovered) = Default::default();
        }
    }

    fn slot(&self, id: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(id.checked_sub(self.base)?).ok()?)
    }

    fn recycle(&mut self, buffer: Coded) {
        // A few are enough: whatever arrives takes one out again.
        if self.spare.len() < 4 && buffer.capacity() > 0 {
            self.spare.push(buffer);
        }
    }

    /// Records that symbols below `next` were sent: new ones are expected, the oldest are dropped.
    fn advance(&mut self, next: u64) {
        let forget_below = next.saturating_sub(self.capacity);
        // Each symbol that is forgotten is looked for in the equations.
        let steps = usize::try_from((next - self.next_id()).min(self.capacity)).unwrap_or(usize::MAX);
        self.work.spend(steps * TERM);
        let leap = forget_below.saturating_sub(self.next_id());
        while self.base < forget_below && !self.slots.is_empty() {
            self.forget_oldest();
        }
        // Symbols that were never waited for, in a leap over everything.
        self.figures.unrecovered += leap;
        self.base = self.base.max(forget_below);
        while self.next_id() < next {
            self.slots.push_back(Slot::default());
        }
    }

    fn forget_oldest(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        let id = self.base;
        self.base += 1;
        if slot.coded.is_empty() {
            self.figures.unrecovered += 1;
            // As the oldest unknown it is the pivot of any equation that has it.
            if let Some(place) = self.equations.iter().position(|equation| equation.terms[0].0 == id) {
                let equation = self.equations.swap_remove(place);
                self.recycle(equation.value);
            }
        } else {
            self.recycle(slot.coded);
        }
    }

    /// A symbol that equations may have arrived.
    fn substitute(&mut self, id: u64) -> Result<(), Contradiction> {
        if !self.work.is_left() {
            // Equations with a symbol that is known would be wrong.
            self.figures.refused += self.equations.len() as u64;
            self.equations.clear();
            return Ok(());
        }
        self.work.spend(self.equations.len() * TERM);
        let mut orphan = None;
        let mut place = 0;
        while let Some(equation) = self.equations.get_mut(place) {
            if let Ok(at) = equation.terms.binary_search_by_key(&id, |term| term.0) {
                let (_, coefficient) = equation.terms.remove(at);
                let coded = &self.slots[(id - self.base) as usize].coded;
                self.work.spend(equation.terms.len() * TERM + coded.len());
                subtract(self.kernel, &mut equation.value, coefficient, coded)?;
                if at == 0 {
                    orphan = Some(self.equations.swap_remove(place));
                    continue;
                }
            }
            place += 1;
        }
        // The one equation that lost its pivot finds another.
        if let Some(orphan) = orphan {
            self.insert(orphan)?;
        }
        self.harvest()
    }

    /// Takes in an equation over missing symbols. False when it follows from the others.
    fn insert(&mut self, mut new: Equation) -> Result<bool, Contradiction> {
        self.work.spend(2 * self.equations.len() * TERM);
        for equation in &self.equations {
            if let Ok(at) = new.terms.binary_search_by_key(&equation.terms[0].0, |term| term.0) {
                let factor = new.terms[at].1;
                self.work.spend(sum_cost(&new, equation));
                add_equation(self.kernel, &mut new, factor, equation);
            }
        }
        let Some(&(pivot, coefficient)) = new.terms.first() else {
            let holds = new.value.iter().all(|&byte| byte == 0);
            self.recycle(new.value);
            return if holds { Ok(false) } else { Err(Contradiction("repair symbols contradict each other")) };
        };
        let factor = gf::inverse(coefficient);
        new.terms.iter_mut().for_each(|term| term.1 = gf::mul(term.1, factor));
        self.kernel.scale(&mut new.value, factor);
        self.work.spend(new.terms.len() * TERM + new.value.len());
        for equation in &mut self.equations {
            if let Ok(at) = equation.terms.binary_search_by_key(&pivot, |term| term.0) {
                let factor = equation.terms[at].1;
                self.work.spend(sum_cost(equation, &new));
                add_equation(self.kernel, equation, factor, &new);
            }
        }
        if self.equations.len() >= MAX_EQUATIONS
            && let Some(oldest) = (0..self.equations.len()).min_by_key(|&i| self.equations[i].terms[0].0)
        {
            self.equations.swap_remove(oldest);
        }
        self.equations.push(new);
        self.harvest()?;
        Ok(true)
    }

    /// Takes out the equations that have come down to one symbol. Pivots are in no other equation.
    fn harvest(&mut self) -> Result<(), Contradiction> {
        let mut place = 0;
        while let Some(equation) = self.equations.get(place) {
            if equation.terms.len() > 1 {
                place += 1;
                continue;
            }
            let Equation { terms, mut value } = self.equations.swap_remove(place);
            let id = terms[0].0;
            let Some(content) = symbol::read(&value) else {
                return Err(Contradiction("what repair symbols say is no symbol"));
            };
            let len = symbol::PREFIX + content.len();
            value.shorten(len);
            self.slots[(id - self.base) as usize] = Slot { coded: value, recovered: true };
            self.figures.recovered += 1;
            self.recovered.push_back(id);
        }
        Ok(())
    }
}

/// Takes a known symbol out of a sum.
fn subtract(kernel: Kernel, sum: &mut [u8], coefficient: u8, coded: &[u8]) -> Result<(), Contradiction> {
    if coded.len() > sum.len() && coded[sum.len()..].iter().any(|&byte| byte != 0) {
        return Err(Contradiction("a repair symbol is shorter than a symbol in it"));
    }
    kernel.add_product(sum, coefficient, coded);
    Ok(())
}

/// Work of [`add_equation`].
fn sum_cost(to: &Equation, equation: &Equation) -> usize {
    (to.terms.len() + equation.terms.len()) * TERM + to.value.len().max(equation.value.len())
}

/// Adds `factor` times an equation to another.
fn add_equation(kernel: Kernel, to: &mut Equation, factor: u8, equation: &Equation) {
    let mut merged = Vec::with_capacity(to.terms.len() + equation.terms.len());
    let (mut a, mut b) = (to.terms.iter().copied().peekable(), equation.terms.iter().copied().peekable());
    loop {
        merged.push(match (a.peek().copied(), b.peek().copied()) {
            (None, None) => break,
            (Some(x), y) if y.is_none_or(|y| x.0 < y.0) => {
                a.next();
                x
            }
            (x, Some(y)) if x.is_none_or(|x| y.0 < x.0) => {
                b.next();
                (y.0, gf::mul(factor, y.1))
            }
            (Some(x), Some(y)) => {
                a.next();
                b.next();
                match x.1 ^ gf::mul(factor, y.1) {
                    0 => continue,
                    sum => (x.0, sum),
                }
            }
            _ => unreachable!("one of the two is smaller"),
        });
    }
    to.terms = merged;
    to.value.grow(equation.value.len());
    kernel.add_product(&mut to.value, factor, &equation.value);
}
