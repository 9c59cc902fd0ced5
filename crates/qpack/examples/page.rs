//! Savings of the dynamic table: the requests of a page, as a browser makes them, and what a section costs to encode and to decode.
//!
//! `cargo run --release -p tiderace-qpack --example page`

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use tiderace_qpack::{Decoder, Encoder, Field};

const REQUESTS: u64 = 100;
/// Sections between which answers are on their way: one round trip of requests.
const ROUND: u64 = 10;
const LIMIT: u64 = 64 << 10;

/// The fields of a request, as Chromium sends them for a script or an image.
fn request(number: u64) -> Vec<(&'static str, String)> {
    let kind = ["script", "image", "style", "font"][(number % 4) as usize];
    let accept =
        ["*/*", "image/avif,image/webp,image/apng,*/*;q=0.8", "text/css,*/*;q=0.1", "*/*"][(number % 4) as usize];
    let cookie = format!(
        "session={}; consent=granted; _ga=GA1.2.1234567890.1700000000; id={}",
        "0a1b2c3d".repeat(12),
        "f9e8d7c6b5".repeat(13)
    );
    [
        (":method", "GET"),
        (":authority", "www.example.com"),
        (":scheme", "https"),
        (":path", &format!("/assets/{kind}/{:016x}.bin?v={number}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
        ("sec-ch-ua", "\"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\""),
        ("sec-ch-ua-mobile", "?0"),
        ("sec-ch-ua-platform", "\"Linux\""),
        (
            "user-agent",
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36",
        ),
        ("accept", accept),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-dest", kind),
        ("referer", "https://www.example.com/products/overview"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("accept-language", "en-US,en;q=0.9,de;q=0.8"),
        ("cookie", &cookie),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec()
}

fn fields<'a>(request: &'a [(&'static str, String)]) -> impl Iterator<Item = Field<'a>> {
    request.iter().map(|(name, value)| Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false })
}

/// One connection's ends, and what is on its way.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    answer: Vec<u8>,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        let mut encoder = Encoder::new(capacity);
        encoder.set_peer_capacity(capacity as u64);
        Self { encoder, decoder: Decoder::new(capacity), answer: Vec::new() }
    }

    /// Bytes of the block, and of the instructions beside it.
    fn send(&mut self, stream: u64, request: &[(&'static str, String)]) -> (Vec<u8>, usize) {
        let (mut block, mut instructions) = (Vec::new(), Vec::new());
        self.encoder.encode(stream, fields(request), &mut block, &mut instructions);
        self.decoder.decode(stream, &block, LIMIT, &mut self.answer, |_, _, _| {}).expect("a conforming section");
        self.decoder.on_encoder_stream(&instructions, &mut self.answer).expect("conforming instructions");
        (block, instructions.len())
    }

    fn answer(&mut self) {
        self.encoder.on_decoder_stream(&self.answer).expect("conforming answers");
        self.answer.clear();
    }
}

fn page(capacity: usize) {
    let mut pair = Pair::new(capacity);
    let (mut blocks, mut beside, mut plain, mut last) = (0, 0, 0, 0);
    for number in 0..REQUESTS {
        let request = request(number);
        plain += request.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let (block, instructions) = pair.send(4 * number, &request);
        blocks += block.len();
        beside += instructions;
        last = block.len();
        if number % ROUND == ROUND - 1 {
            pair.answer();
        }
    }
    let each = |bytes: usize| bytes as f64 / REQUESTS as f64;
    println!(
        "capacity {capacity:5}: {:6.1} bytes per request of {:.1} ({:.1} in sections, {:.1} in instructions); the last section {last}",
        each(blocks + beside),
        each(plain),
        each(blocks),
        each(beside),
    );
}

/// Fastest of several runs, for one section.
fn best(mut run: impl FnMut() -> Duration) -> f64 {
    const SECTIONS: u32 = 2_000;
    let once = |run: &mut dyn FnMut() -> Duration| (0..SECTIONS).map(|_| run()).sum::<Duration>();
    (0..30).map(|_| once(&mut run)).min().unwrap_or_default().as_nanos() as f64 / f64::from(SECTIONS)
}

fn cost(capacity: usize) {
    let mut pair = Pair::new(capacity);
    for number in 0..REQUESTS {
        pair.send(4 * number, &request(number));
        pair.answer();
    }
    let requests: Vec<_> = (0..64).map(|number| request(1_000 + number)).collect();
    let (mut block, mut instructions) = (Vec::new(), Vec::new());
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    let encode = best(|| {
        let number = next();
        block.clear();
        instructions.clear();
        let request = &requests[number as usize % requests.len()];
        // The clock is read once per section on both sides: some 40 ns are its own.
        #[expect(clippy::disallowed_methods, reason = "this measures")]
        let begin = Instant::now();
        pair.encoder.encode(4 * number, fields(black_box(request)), &mut block, &mut instructions);
        let time = begin.elapsed();
        pair.decoder.decode(4 * number, &block, LIMIT, &mut pair.answer, |_, _, _| {}).expect("a conforming section");
        pair.decoder.on_encoder_stream(&instructions, &mut pair.answer).expect("conforming instructions");
        pair.answer();
        time
    });
    let decode = best(|| {
        let number = next();
        block.clear();
        instructions.clear();
        let request = &requests[number as usize % requests.len()];
        pair.encoder.encode(4 * number, fields(request), &mut block, &mut instructions);
        let mut bytes = 0;
        #[expect(clippy::disallowed_methods, reason = "this measures")]
        let begin = Instant::now();
        let emit = |name: &[u8], value: &[u8], _: bool| bytes += black_box((name, value)).0.len();
        pair.decoder
            .decode(4 * number, black_box(&block), LIMIT, &mut pair.answer, emit)
            .expect("a conforming section");
        let time = begin.elapsed();
        pair.decoder.on_encoder_stream(&instructions, &mut pair.answer).expect("conforming instructions");
        pair.answer();
        black_box(bytes);
        time
    });
    println!(
        "capacity {capacity:5}: {encode:6.0} ns to encode and {decode:6.0} ns to decode a section of {} fields",
        requests[0].len()
    );
}

fn main() {
    for capacity in [0, 4_096] {
        page(capacity);
    }
    for capacity in [0, 4_096] {
        cost(capacity);
    }
}
