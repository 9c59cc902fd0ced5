//! An encoder and a decoder under random commands, beside a model of what must come out; a program may also let one of them meet a
//! peer that breaks rules.
//!
//! A program is bytes: the first two say how large the tables are, then each pair is a command and an amount. What always holds: no
//! panic, and what is kept has its bound. As long as nobody breaks rules, nobody finds a fault, no section waits for the encoder
//! stream, and fields come out as they went in.

use std::collections::HashSet;

use tiderace_qpack::{Decoder, Encoder, Field, SectionError};

const CAPACITIES: [usize; 8] = [0, 33, 64, 200, 400, 1_000, 4_096, 20_000];
const NAMES: [&str; 24] = [
    ":authority",
    ":path",
    ":method",
    "user-agent",
    "accept",
    "cookie",
    "authorization",
    "set-cookie",
    "date",
    "content-type",
    "cache-control",
    "vary",
    "x-a",
    "x-b",
    "x-c",
    "x-some-longer-name",
    "x-trace",
    "sec-fetch-mode",
    "sec-ch-ua",
    "if-none-match",
    "if-something",
    "server",
    "priority",
    "",
];
const STREAMS: u64 = 16;
/// Sections and bytes that are in progress.
const UNDER_WAY: usize = 300;

/// A field that 16 bits stand for: few, so that they come again.
fn field(kind: u8, choice: u8) -> (Vec<u8>, Vec<u8>, bool) {
    let name = NAMES[usize::from(kind) % NAMES.len()].as_bytes().to_vec();
    let value = match choice {
        0 => Vec::new(),
        1 => b"GET".to_vec(),
        // Not worth Huffman codes.
        2..=9 => vec![0xf0 | choice; usize::from(choice)],
        // Some are larger than what is worth an entry, and than small tables.
        10..=13 => vec![b'a' + choice; usize::from(choice) * 40],
        _ => format!("value {} of it, {choice}", choice % 7).into_bytes(),
    };
    (name, value, kind >= 240)
}

struct Section {
    stream: u64,
    block: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>, bool)>,
}

/// Reach of a program.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Sections that were decoded.
    pub(crate) sections: usize,
    /// Of them those that referred to the dynamic table.
    pub(crate) dynamic: usize,
    /// Bytes of instructions.
    pub(crate) instructions: usize,
    /// A peer broke rules.
    pub(crate) hostile: bool,
    /// The encoder knows the SETTINGS.
    pub(crate) settled: bool,
}

struct World {
    encoder: Encoder,
    decoder: Decoder,
    capacity: usize,
    /// On their way.
    instructions: Vec<u8>,
    answers: Vec<u8>,
    sections: Vec<Section>,
    /// Streams that the decoder has given up.
    cancelled: HashSet<u64>,
    reached: Reached,
}

impl World {
    fn new(ours: u8, theirs: u8) -> Self {
        let capacity = CAPACITIES[usize::from(theirs) % CAPACITIES.len()];
        let encoder = Encoder::new(CAPACITIES[usize::from(ours) % CAPACITIES.len()]);
        Self {
            encoder,
            decoder: Decoder::new(capacity),
            capacity,
            instructions: Vec::new(),
            answers: Vec::new(),
            sections: Vec::new(),
            cancelled: HashSet::new(),
            reached: Reached::default(),
        }
    }

    /// SETTINGS come, once.
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.reached.settled, true) {
            self.encoder.set_peer_capacity(self.capacity as u64);
        }
    }

    fn encode(&mut self, stream: u64, fields: Vec<(Vec<u8>, Vec<u8>, bool)>) {
        let mut block = vec![1, 2];
        let before = self.instructions.len();
        let lines = fields.iter().map(|(name, value, sensitive)| Field { name, value, sensitive: *sensitive });
        self.encoder.encode(stream, lines, &mut block, &mut self.instructions);
        assert_eq!(block[..2], [1, 2], "appended");
        block.drain(..2);
        self.reached.instructions += self.instructions.len() - before;
        assert!(self.encoder.outstanding() <= 256);
        assert!(self.encoder.table_size() <= self.capacity);
        if !self.cancelled.contains(&stream) {
            self.sections.push(Section { stream, block, fields });
        }
    }

    /// Instructions come.
    fn instruct(&mut self, most: usize) {
        let piece: Vec<u8> = self.instructions.drain(..most.min(self.instructions.len())).collect();
        let result = self.decoder.on_encoder_stream(&piece, &mut self.answers);
        assert!(self.reached.hostile || result.is_ok(), "{result:?}");
        self.bounds();
    }

    fn bounds(&self) {
        assert!(self.decoder.table_size() <= self.capacity);
        assert!(self.decoder.kept() <= 4 * self.capacity + 600, "{} bytes are kept", self.decoder.kept());
    }

    /// Answers come.
    fn answer(&mut self, most: usize) {
        let piece: Vec<u8> = self.answers.drain(..most.min(self.answers.len())).collect();
        let result = self.encoder.on_decoder_stream(&piece);
        assert!(self.reached.hostile || result.is_ok(), "{result:?}");
    }

    /// The first section comes of the stream of any section.
    fn decode(&mut self, choice: usize, limit: u64) {
        let Some(any) = choice.checked_rem(self.sections.len()) else { return };
        let stream = self.sections[any].stream;
        let Some(place) = self.sections.iter().position(|section| section.stream == stream) else { return };
        let section = self.sections.remove(place);
        let before = self.answers.len();
        let mut fields = Vec::new();
        let result = self.decoder.decode(stream, &section.block, limit, &mut self.answers, |name, value, sensitive| {
            fields.push((name.to_vec(), value.to_vec(), sensitive));
        });
        if self.reached.hostile {
            return;
        }
        let size = |fields: &[(Vec<u8>, Vec<u8>, bool)]| -> u64 {
            fields.iter().map(|(name, value, _)| (name.len() + value.len() + 32) as u64).sum()
        };
        let whole = size(&section.fields);
        if whole > limit {
            assert_eq!(result, Err(SectionError::TooLarge { size: whole, limit }));
            assert!(size(&fields) <= limit);
            assert_eq!(fields, section.fields[..fields.len()]);
        } else {
            assert_eq!(result, Ok(()));
            assert_eq!(fields, section.fields);
        }
        self.reached.sections += 1;
        let is_dynamic = section.block[0] != 0;
        self.reached.dynamic += usize::from(is_dynamic);
        assert_eq!(self.answers.len() > before, is_dynamic);
    }

    fn cancel(&mut self, stream: u64) {
        self.cancelled.insert(stream);
        self.sections.retain(|section| section.stream != stream);
        self.decoder.cancel(stream, &mut self.answers);
    }

    fn break_rules(&mut self, way: u8, bytes: &[u8]) {
        self.reached.hostile = true;
        let mut size = 0;
        match way % 3 {
            0 => {
                let _ = self.decoder.on_encoder_stream(bytes, &mut self.answers);
            }
            1 => {
                let _ = self.encoder.on_decoder_stream(bytes);
            }
            _ => {
                let limit = 10_000;
                let emit = |name: &[u8], value: &[u8], _: bool| size += name.len() + value.len() + 32;
                let result = self.decoder.decode(0, bytes, limit, &mut self.answers, emit);
                assert!(size as u64 <= limit);
                assert!(result.is_ok() || !matches!(result, Err(SectionError::TooLarge { size, .. }) if size <= limit));
            }
        }
        self.bounds();
    }
}

/// Runs a program.
pub(crate) fn qpack(program: &[u8]) -> Reached {
    let mut rest = program.iter().copied();
    let (Some(ours), Some(theirs)) = (rest.next(), rest.next()) else { return Reached::default() };
    let mut world = World::new(ours, theirs);
    let mut next = STREAMS;
    // In most programs SETTINGS are there from the beginning.
    if ours < 192 {
        world.settle();
    }
    while let (Some(command), Some(amount)) = (rest.next(), rest.next()) {
        let stream = u64::from(amount) % STREAMS;
        match command % 16 {
            0..=4 if world.sections.len() < UNDER_WAY => {
                let count = usize::from(command / 16);
                let pairs: Vec<u8> = rest.by_ref().take(2 * count).collect();
                let fields = pairs.chunks_exact(2).map(|pair| field(pair[0], pair[1])).collect();
                // Most streams have one section.
                let id = if command.is_multiple_of(2) { stream } else { next };
                next += 1;
                world.encode(id, fields);
            }
            5 | 6 => world.instruct(usize::from(amount)),
            7 | 8 => world.answer(usize::from(amount)),
            9..=11 => {
                let limit = if command >= 240 { u64::from(amount) * 4 } else { u64::MAX };
                world.decode(usize::from(amount), limit);
            }
            12 if amount < 40 => {
                let first = world.sections.first().map_or(stream, |section| section.stream);
                world.cancel(if command < 128 { first } else { stream });
            }
            13 => {
                world.instruct(usize::MAX);
                world.answer(usize::MAX);
            }
            14 if amount == 255 => {
                let bytes: Vec<u8> = rest.by_ref().take(usize::from(command)).collect();
                world.break_rules(command / 16, &bytes);
            }
            15 => world.settle(),
            _ => {}
        }
    }
    // Everything arrives: nothing is left to be waited for.
    for _ in 0..UNDER_WAY {
        world.decode(0, u64::MAX);
    }
    world.instruct(usize::MAX);
    world.answer(usize::MAX);
    let reached = world.reached;
    if !reached.hostile && world.cancelled.len() < 60 {
        assert_eq!(world.encoder.outstanding(), 0);
        assert_eq!(world.encoder.table_size(), world.decoder.table_size());
    }
    reached
}
