//! The encoder behind a pipe, so that another implementation can decode what it makes (`interop/qpack_vectors.py check`).
//!
//! One command a line, all bytes in hexadecimal digits, an empty string as `-`:
//!
//! - `capacity OURS PEER`: the encoder, in bytes;
//! - `section STREAM NAME VALUE NAME VALUE …`: answered with a line `INSTRUCTIONS BLOCK`;
//! - `answer BYTES`: what came on the decoder stream; answered with `ok`, or with the reason why not.

use std::io::{BufRead, Write};

use tiderace_qpack::{Encoder, Field};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
}

fn answer(encoder: &mut Encoder, line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    match words.next()? {
        "capacity" => {
            *encoder = Encoder::new(words.next()?.parse().ok()?);
            encoder.set_peer_capacity(words.next()?.parse().ok()?);
            Some("ok".to_owned())
        }
        "section" => {
            let stream = words.next()?.parse().ok()?;
            let strings: Vec<_> = words.map(bytes).collect();
            let fields =
                strings.chunks_exact(2).map(|pair| Field { name: &pair[0], value: &pair[1], sensitive: false });
            let (mut block, mut instructions) = (Vec::new(), Vec::new());
            encoder.encode(stream, fields, &mut block, &mut instructions);
            Some(format!("{} {}", hex(&instructions), hex(&block)))
        }
        "answer" => {
            let result = encoder.on_decoder_stream(&bytes(words.next()?));
            Some(result.map_or_else(|error| error.to_string(), |()| "ok".to_owned()))
        }
        _ => None,
    }
}

fn main() -> std::io::Result<()> {
    let mut encoder = Encoder::new(0);
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&mut encoder, &line?);
        writeln!(out, "{}", answer.as_deref().unwrap_or("what?"))?;
        out.flush()?;
    }
    Ok(())
}
