//! Fuzz programs, and the tests on their corpus: bytes of the other end of an IP tunnel, and requests for one.
//!
//! The first byte selects what the rest is: capsules on a stream, which arrive in parts of the size in the second byte; a packet; path and
//! query of a request; a template. Invariants: no panic; the split into parts makes no difference; what is accepted can be written again,
//! and is then parsed as the same value; no ICMP message answers another, or is larger than it may be.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ADDRESS_ASSIGN, ADDRESS_REQUEST, AddressAssign, AddressRange, AddressRequest, Content, MAX_PACKET, MIN_IPV6_MTU,
    Packet, ROUTE_ADVERTISEMENT, RouteAdvertisement, Scope, Template,
    icmp::{self, Report},
};
use crate::capsule::{self, Capsule, Capsules};

/// The longest capsule, as gateway and client have it.
const MAX: usize = MAX_PACKET + 8;
/// Ranges that are compared address by address.
const COMPARED: usize = 64;

/// Reach of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Capsules that were accepted.
    pub capsules: usize,
    /// Packets with a header that a router forwards.
    pub packets: usize,
    /// Requests with a scope, and templates.
    pub requests: usize,
}

impl Reached {
    fn capsule() -> Self {
        Self { capsules: 1, ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.capsules += other.capsules;
        self.packets += other.packets;
        self.requests += other.requests;
    }
}

/// Runs a program.
///
/// # Panics
/// When an invariant does not hold.
pub fn run(program: &[u8]) -> Reached {
    let Some((&[choice, size], rest)) = program.split_first_chunk::<2>() else { return Reached::default() };
    match choice % 4 {
        0 => stream(rest, usize::from(size) + 1),
        1 => datagram(rest),
        2 => request(rest),
        _ => template(rest),
    }
}

fn stream(bytes: &[u8], size: usize) -> Reached {
    let read = |size: usize| {
        let types = [capsule::DATAGRAM, ADDRESS_ASSIGN, ADDRESS_REQUEST, ROUTE_ADVERTISEMENT];
        let mut capsules = Capsules::among(&types, MAX);
        let mut found = Vec::new();
        for part in bytes.chunks(size) {
            capsules.push(part);
            loop {
                match capsules.take() {
                    Ok(None) => break,
                    Ok(Some(capsule)) => found.push(capsule),
                    Err(_) => return (found, None),
                }
            }
        }
        (found, Some(capsules.is_between()))
    };
    let (found, end) = read(usize::MAX);
    assert_eq!(read(size), (found.clone(), end));
    let mut reached = Reached::default();
    found.iter().for_each(|capsule| reached.add(take(capsule)));
    reached
}

fn take(capsule: &Capsule) -> Reached {
    match capsule.ty {
        capsule::DATAGRAM => return datagram(&capsule.value),
        ADDRESS_ASSIGN => {
            let Ok(assigned) = AddressAssign::parse(&capsule.value) else { return Reached::default() };
            assert_eq!(AddressAssign::parse(&assigned.encode()).as_ref(), Ok(&assigned));
            assert!(assigned.prefixes().len() <= assigned.0.len());
        }
        ADDRESS_REQUEST => {
            let Ok(request) = AddressRequest::parse(&capsule.value) else { return Reached::default() };
            assert_eq!(AddressRequest::parse(&request.encode()).as_ref(), Ok(&request));
            assert!(!request.0.is_empty() && request.0.iter().all(|requested| requested.request_id != 0));
        }
        _ => {
            let Ok(routes) = RouteAdvertisement::parse(&capsule.value) else { return Reached::default() };
            assert_eq!(routes.encode(), capsule.value);
            // They are in order already, so that nothing changes.
            assert_eq!(RouteAdvertisement::of(routes.0.clone()), routes);
            routes.0.iter().take(COMPARED).for_each(range);
        }
    }
    Reached::capsule()
}

/// The prefixes of a range have its ends, and not their neighbours.
fn range(range: &AddressRange) {
    let prefixes = range.prefixes();
    let has = |address: IpAddr| prefixes.iter().any(|prefix| prefix.contains(address));
    assert!(has(range.start) && has(range.end));
    let parts = range.without(range.start);
    assert!(parts.iter().all(|part| part.start <= part.end && !part.contains(range.start)));
    assert_eq!(parts.is_empty(), range.start == range.end);
}

fn datagram(datagram: &[u8]) -> Reached {
    let Content::Packet(bytes) = Content::parse(datagram) else { return Reached::default() };
    let Ok(header) = Packet::parse(bytes) else { return Reached::default() };
    assert_eq!(header.source.is_ipv4(), header.destination.is_ipv4());
    assert!(header.payload_at <= bytes.len());
    assert!(header.ports.is_none() || !header.is_later_fragment);
    let from = match header.source {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::new(10, 89, 0, 1)),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::new(0xfd00, 0x89, 0, 0, 0, 0, 0, 1)),
    };
    for what in [Report::TooBig { mtu: MIN_IPV6_MTU }, Report::SourceRefused, Report::NoRoute, Report::Prohibited] {
        let Some(report) = icmp::report(bytes, &header, what, from) else { continue };
        let told = Packet::parse(&report).expect("a report is a packet");
        assert_eq!((told.source, told.destination), (from, header.source));
        assert!(report.len() <= if from.is_ipv4() { 576 } else { MIN_IPV6_MTU });
        assert_eq!(icmp::report(&report, &told, what, from), None, "a report is reported");
    }
    if let IpAddr::V6(from) = from
        && let Some(answer) = icmp::answer_all_nodes(bytes, &header, from)
    {
        let told = Packet::parse(&answer).expect("an answer is a packet");
        assert_eq!((told.source, told.destination), (from.into(), header.source));
        assert_eq!(icmp::answer_all_nodes(&answer, &told, from), None, "an answer is answered");
    }
    Reached { packets: 1, ..Reached::default() }
}

fn request(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else { return Reached::default() };
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let mut reached = Reached::default();
    for own in ["/ip/{target}/{ipproto}/", "/ip{?target,ipproto}", "/ip"] {
        let template = Template::for_server(own).expect("it is one");
        if let Some(scope) = template.find(path, query) {
            again(&template, &scope);
            reached.requests += 1;
        }
    }
    reached
}

fn template(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else { return Reached::default() };
    let Ok(template) = text.parse::<Template>() else { return Reached::default() };
    let uri = template.expand(&Scope::default());
    assert!(uri.parse::<http::Uri>().is_ok_and(|uri| uri.authority().is_some()), "{text}: {uri}");
    Reached { requests: 1, ..Reached::default() }
}

/// A scope is found again in the request that a client makes of it.
fn again(template: &Template, scope: &Scope) {
    let path = template.expand(scope);
    let (path, query) = path.split_once('?').map_or((&*path, None), |(path, query)| (path, Some(query)));
    assert_eq!(template.find(path, query).as_ref(), Some(scope));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;

    static CORPUS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/connect_ip");
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
            all.add(run(program));
        }
        assert!(all.capsules >= 10 && all.packets >= 10 && all.requests >= 8, "the corpus comes far: {all:?}");
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
