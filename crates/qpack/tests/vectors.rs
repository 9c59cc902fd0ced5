//! Vectors of another implementation's encoder: the files of `vectors/`, which `interop/qpack_vectors.py write` makes with
//! ls-qpack. It describes their form.

use std::{fs, path::Path};

use tiderace_qpack::Decoder;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Sections, and of them those that refer to the dynamic table. The encoder stream comes in pieces of `piece` bytes.
fn replay(text: &str, piece: usize) -> (usize, usize) {
    let mut decoder = Decoder::new(0);
    let (mut sections, mut dynamic) = (0, 0);
    let mut decoded: Fields = Vec::new();
    let mut expected: Fields = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["capacity", capacity] => decoder = Decoder::new(capacity.parse().unwrap()),
            ["E", data] => {
                for piece in bytes(data).chunks(piece) {
                    decoder.on_encoder_stream(piece, &mut Vec::new()).unwrap();
                }
            }
            ["B", stream, data] => {
                assert_eq!(decoded, expected);
                decoded.clear();
                expected.clear();
                let stream: u64 = stream.parse().unwrap();
                let mut answer = Vec::new();
                let emit = |name: &[u8], value: &[u8], _: bool| decoded.push((name.to_vec(), value.to_vec()));
                decoder.decode(stream, &bytes(data), u64::MAX, &mut answer, emit).unwrap();
                sections += 1;
                dynamic += usize::from(!answer.is_empty());
            }
            ["F", name, value] => expected.push((bytes(name), bytes(value))),
            ["#", ..] => {}
            _ => panic!("{line}"),
        }
    }
    assert_eq!(decoded, expected);
    (sections, dynamic)
}

#[test]
fn sections_of_ls_qpack() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut sections, mut dynamic) = (0, 0);
    for file in files {
        // Shown only when something differs.
        println!("{}", file.display());
        let text = fs::read_to_string(&file).unwrap();
        let whole = replay(&text, usize::MAX);
        assert_eq!(replay(&text, 1), whole);
        assert_eq!(replay(&text, 7), whole);
        sections += whole.0;
        dynamic += whole.1;
    }
    assert!(sections >= 700 && dynamic >= 350, "{sections} sections, {dynamic} of them with the dynamic table");
}
