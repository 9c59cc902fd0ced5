//! A seeded run of encoder, channel and decoder, watched by an oracle. The fuzz target of the decoder uses it as well.

use std::collections::{BTreeMap, BTreeSet};

use fec::{Decoder, Encoder, Kernel, Repair, Schedule, Scheme, coefficient, gf};

/// A small generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Loses packets in bursts of a mean length (Gilbert); a mean of 1 is independent loss.
pub(crate) struct Channel {
    enter: f64,
    stay: f64,
    bad: bool,
}

impl Channel {
    pub(crate) fn new(loss: f64, burst: f64) -> Self {
        let (enter, stay) =
            if burst <= 1.0 { (loss, loss) } else { (loss / (burst * (1.0 - loss)), 1.0 - 1.0 / burst) };
        Self { enter, stay, bad: false }
    }

    pub(crate) fn loses(&mut self, random: &mut Random) -> bool {
        self.bad = random.unit() < if self.bad { self.stay } else { self.enter };
        self.bad
    }
}

/// Oracle by ranks: what the arrived symbols determine.
struct Oracle {
    capacity: u64,
    next: u64,
    known: BTreeSet<u64>,
    repairs: Vec<Repair>,
    solved: BTreeSet<u64>,
}

impl Oracle {
    fn base(&self) -> u64 {
        self.next.saturating_sub(self.capacity)
    }

    fn on_source(&mut self, id: u64) {
        self.next = self.next.max(id + 1);
        if id >= self.base() {
            self.known.insert(id);
        }
        self.solve();
    }

    fn on_repair(&mut self, repair: Repair) {
        let before = self.base();
        self.next = self.next.max(repair.last() + 1);
        if repair.first >= before.max(self.base()) {
            self.repairs.push(repair);
        }
        self.solve();
    }

    /// Dense elimination of all equations over all unknowns; the oldest columns first.
    fn solve(&mut self) {
        let base = self.base();
        // Nothing is forgotten: a repair over symbols that are out of reach may still tell them from those that are not.
        let unknown = |id: &u64| !self.known.contains(id);
        let columns: BTreeSet<u64> =
            self.repairs.iter().flat_map(|r| r.terms().map(|t| t.0)).filter(|id| unknown(id)).collect();
        let columns: Vec<u64> = columns.into_iter().collect();
        let place: BTreeMap<u64, usize> = columns.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for repair in &self.repairs {
            let mut row = vec![0; columns.len()];
            for i in 0..u64::from(repair.count) {
                let id = repair.first + i * u64::from(repair.stride);
                if let Some(&at) = place.get(&id) {
                    row[at] = coefficient(repair.row, id);
                }
            }
            rows.push(row);
        }
        let mut rank = 0;
        for column in 0..columns.len() {
            let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
            rows.swap(rank, pivot);
            let factor = gf::inverse(rows[rank][column]);
            rows[rank].iter_mut().for_each(|x| *x = gf::mul(*x, factor));
            let pivot = rows[rank].clone();
            for (index, row) in rows.iter_mut().enumerate() {
                let factor = row[column];
                if index != rank && factor != 0 {
                    row.iter_mut().zip(&pivot).for_each(|(x, p)| *x ^= gf::mul(factor, *p));
                }
            }
            rank += 1;
        }
        for row in &rows[..rank] {
            let mut set = row.iter().enumerate().filter(|(_, x)| **x != 0);
            if let (Some((at, _)), None) = (set.next(), set.next())
                && columns[at] >= base
            {
                self.known.insert(columns[at]);
                self.solved.insert(columns[at]);
            }
        }
    }
}

pub(crate) struct Outcome {
    pub(crate) repairs: u64,
    pub(crate) recovered: u64,
}

enum Packet {
    Source(u64),
    Repair(Repair, Vec<u8>),
}

/// Sends some hundred symbols with a random code over a random channel, with reordering, and checks every step.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut random = Random(seed);
    let scheme: Scheme = loop {
        let (a, b, c) = (1 + random.below(30), 1 + random.below(6), 1 + random.below(8));
        let name = match random.below(3) {
            0 => format!("xor:{a}/{c}"),
            1 => format!("rs:{a}+{b}/{c}"),
            _ => format!("rlc:{b}/{a}:{}", 4 + random.below(190)),
        };
        if let Ok(scheme) = name.parse() {
            break scheme;
        }
    };
    let burst = [1.0, 1.0, 3.0, 6.0][random.below(4) as usize];
    let mut channel = Channel::new(0.01 + 0.3 * random.unit(), burst);
    let reorder = if random.below(2) == 0 { 0.0 } else { 0.1 };
    let available: Vec<_> = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()).collect();
    let kernel = available[random.below(available.len() as u64) as usize];
    // Sometimes hardly more than the code reaches, so that memory runs out in the middle of things.
    let capacity = scheme.span() + [0, 8, 200][random.below(3) as usize];
    let size = 1 + random.below(60);

    let mut encoder = Encoder::new(kernel, scheme.span() as usize);
    let mut schedule = Schedule::new(scheme, 0);
    let mut decoder = Decoder::new(kernel, capacity);
    let mut oracle = Oracle { capacity, next: 0, known: BTreeSet::new(), repairs: Vec::new(), solved: BTreeSet::new() };
    let mut contents = Vec::new();
    let mut recovered = BTreeSet::new();
    let mut repairs = 0;
    let mut delayed: Vec<(u64, Packet)> = Vec::new();
    let symbols = 20 + random.below(100);
    for step in 0..symbols {
        let content: Vec<u8> = (0..random.below(size)).map(|_| random.next() as u8).collect();
        let id = encoder.push(&content);
        contents.push(content);
        schedule.on_source(id);
        if random.below(20) == 0 || step + 1 == symbols {
            schedule.flush(2, if seed.is_multiple_of(2) { fec::Allowed::ByRate } else { fec::Allowed::ByCap });
        }
        let mut sent = vec![Packet::Source(id)];
        while let Some(repair) = schedule.take_due() {
            let next = schedule.peek_due().copied();
            let value =
                encoder.repair(&repair, next.as_ref()).expect("what the schedule wants, the encoder holds").to_vec();
            assert_eq!(Some(value.len()), encoder.repair_len(&repair));
            sent.push(Packet::Repair(repair, value));
            repairs += 1;
        }
        for packet in sent {
            if !channel.loses(&mut random) {
                let late = if random.unit() < reorder { random.below(30) } else { 0 };
                delayed.push((step + late, packet));
            }
        }
        let last = step + 1 == symbols;
        let (due, later): (Vec<_>, Vec<_>) = delayed.into_iter().partition(|(at, _)| last || *at <= step);
        delayed = later;
        for (_, packet) in due {
            match packet {
                Packet::Source(id) => {
                    decoder.on_source(id, &contents[id as usize]).expect("a conforming sender");
                    oracle.on_source(id);
                }
                Packet::Repair(repair, value) => {
                    decoder.on_repair(&repair, &value).expect("a conforming sender");
                    oracle.on_repair(repair);
                }
            }
            while let Some((id, content)) = decoder.next_recovered() {
                assert_eq!(content, contents[id as usize], "seed {seed}: a wrong byte in symbol {id}");
                assert!(recovered.insert(id), "seed {seed}: symbol {id} came out twice");
            }
            assert_eq!(recovered, oracle.solved, "seed {seed}, {scheme}");
        }
    }
    Outcome { repairs, recovered: recovered.len() as u64 }
}
