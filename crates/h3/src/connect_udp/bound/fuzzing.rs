//! Fuzz programs, and the tests on their corpus: bytes of the other end of a bound UDP tunnel.
//!
//! The first byte selects the end that receives and whether there is a target, the second the size of the parts in which the stream
//! arrives. Invariants: no panic; the split into parts makes no difference; what is accepted can be written again, and is then parsed as the same
//! value; open contexts and memory are bounded; the header for a peer leads back to the peer.

use std::net::SocketAddr;

use super::{Compression, Contexts, End, Received};
use crate::{
    capsule::{self, Capsules},
    connect_udp::MAX_PAYLOAD,
};

/// The longest capsule, as gateway and client have it.
const MAX: usize = MAX_PAYLOAD + 8 + 19;
/// Open contexts of each end.
const CONTEXTS: usize = 4;

/// Reach of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Capsules that were accepted.
    pub capsules: usize,
    /// UDP payloads of peers.
    pub payloads: usize,
    /// Streams that were aborted.
    pub faults: usize,
}

/// Runs a program.
///
/// # Panics
/// When an invariant does not hold.
pub fn run(program: &[u8]) -> Reached {
    let Some((&[choice, size], rest)) = program.split_first_chunk::<2>() else { return Reached::default() };
    let reached = stream(choice, rest, usize::MAX);
    assert_eq!(stream(choice, rest, usize::from(size) + 1), reached);
    reached
}

fn stream(choice: u8, bytes: &[u8], size: usize) -> Reached {
    let end = if choice.is_multiple_of(2) { End::Proxy } else { End::Client };
    let mut contexts = Contexts::new(end, CONTEXTS, choice & 2 != 0);
    let opened = contexts.open_uncompressed();
    assert_eq!(opened.is_some(), end == End::Client);
    let types = [&[capsule::DATAGRAM][..], &Compression::TYPES].concat();
    let mut capsules = Capsules::among(&types, MAX);
    let mut reached = Reached::default();
    for part in bytes.chunks(size) {
        capsules.push(part);
        loop {
            let taken = match capsules.take() {
                Ok(None) => break,
                Ok(Some(capsule)) => take(&mut contexts, &capsule, &mut reached),
                Err(_) => None,
            };
            if taken.is_none() {
                reached.faults += 1;
                return reached;
            }
        }
    }
    reached
}

/// Takes a capsule; `None` when the stream is aborted.
fn take(contexts: &mut Contexts, capsule: &capsule::Capsule, reached: &mut Reached) -> Option<()> {
    if capsule.ty == capsule::DATAGRAM {
        if let Received::Payload(peer, payload) = contexts.receive(&capsule.value).ok()? {
            assert!(payload.len() <= MAX_PAYLOAD);
            reached.payloads += 1;
            leads_back(contexts, peer);
        }
        return Some(());
    }
    let parsed = Compression::parse(capsule.ty, &capsule.value).ok()?;
    let mut written = Vec::new();
    parsed.write(&mut written);
    let mut again = Capsules::among(&Compression::TYPES, MAX);
    again.push(&written);
    let again = again.take().ok()?.expect("a whole capsule");
    assert_eq!(Compression::parse(again.ty, &again.value), Ok(parsed));
    let mut answers = Vec::new();
    contexts.take(&parsed, |peer| peer.port() != 25, &mut answers).ok()?;
    assert!(answers.len() <= 2);
    assert!(contexts.open() <= 2 * CONTEXTS && contexts.held() < 16 * 1024);
    if let Compression::Assign { context, peer } = parsed {
        assert!(matches!(answers.last(), Some(Compression::Ack(id) | Compression::Close(id)) if *id == context));
        if let (Some(peer), true) = (peer, contexts.is_known(context)) {
            assert_eq!(contexts.context_of(peer), Some(context));
            leads_back(contexts, peer);
        }
    }
    reached.capsules += 1;
    Some(())
}

/// The header for a peer is one of the same peer for the other end, whose contexts are the same.
fn leads_back(contexts: &Contexts, peer: SocketAddr) {
    if let Some(header) = contexts.header(peer) {
        let datagram = [&header[..], b"x"].concat();
        assert_eq!(contexts.receive(&datagram), Ok(Received::Payload(peer, b"x")));
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;

    static CORPUS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/bound_udp");
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|file| fs::read(file).unwrap()).collect()
    });

    /// Found once by a fuzzer, found for ever.
    #[test]
    fn the_corpus() {
        let mut all = Reached::default();
        for program in &*CORPUS {
            // Shown only when the check panics: the input that did it.
            println!("{program:?}");
            let Reached { capsules, payloads, faults } = run(program);
            all = Reached {
                capsules: all.capsules + capsules,
                payloads: all.payloads + payloads,
                faults: all.faults + faults,
            };
        }
        assert!(all.capsules >= 20 && all.payloads >= 6 && all.faults >= 8, "the corpus comes far: {all:?}");
    }

    proptest! {
        /// Programs of the corpus, with a few bytes changed, cut and put together.
        #[test]
        fn no_program_is_a_panic(
            (one, other) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut program = one.get(&CORPUS).clone();
            let (rest, at) = (other.get(&CORPUS), cut.index(program.len() + 1));
            program.truncate(at);
            program.extend(&rest[at.min(rest.len())..]);
            for (place, byte) in changes {
                if !program.is_empty() {
                    let place = place.index(program.len());
                    program[place] = byte;
                }
            }
            run(&program);
        }
    }
}
