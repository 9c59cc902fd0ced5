//! Static table (RFC 9204 appendix A), and properties of its names and of some others.

use crate::hash;

/// Name and value of each entry, by index.
pub(crate) static ENTRIES: [(&[u8], &[u8]); 99] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// Worth of a name's values as entries of the dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// A connection has one value, or few: worth an entry at the first occurrence, if nothing is evicted for it.
    Stable,
    /// Worth an entry when the same value comes again.
    Unknown,
    /// Long ones are worth an entry when they come again; short ones could be guessed (RFC 9204 §7.1).
    Cookie,
    /// Each message has its own value, or the value is secret: never in the table.
    Fleeting,
}

/// A name that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    /// The first entry with the name.
    pub(crate) index: Option<u8>,
    pub(crate) habit: Habit,
}

const STABLE: &[&[u8]] = &[
    b":authority",
    b"accept",
    b"accept-encoding",
    b"accept-language",
    b"alt-svc",
    b"content-security-policy",
    b"origin",
    b"permissions-policy",
    b"referrer-policy",
    b"sec-ch-ua",
    b"sec-ch-ua-mobile",
    b"sec-ch-ua-platform",
    b"server",
    b"strict-transport-security",
    b"user-agent",
    b"vary",
    b"via",
    b"x-frame-options",
    b"x-powered-by",
];

const FLEETING: &[&[u8]] = &[
    b"age",
    b"authorization",
    b"content-length",
    b"content-range",
    b"date",
    b"etag",
    b"expires",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"last-modified",
    b"proxy-authorization",
    b"range",
    b"set-cookie",
];

/// Slots of an index, a power of two with many more slots than entries.
const SLOTS: usize = 512;
const MASK: usize = SLOTS - 1;
const NONE: u8 = 0xff;

/// Names for look-ups: those of the static table first, then the others.
const KNOWN: usize = ENTRIES_LEN + STABLE.len() + FLEETING.len();
const ENTRIES_LEN: usize = 99;

struct Index {
    /// Names by hash, then the slot after; a name's number is that of its first entry, or 99 and more for the two lists.
    names: [u8; SLOTS],
    habits: [Habit; KNOWN],
    /// Entries by hash of name and value, then the slot after.
    fields: [u8; SLOTS],
}

static INDEX: Index = Index::new();

const fn known(number: usize) -> &'static [u8] {
    if number < ENTRIES_LEN {
        ENTRIES[number].0
    } else if number < ENTRIES_LEN + STABLE.len() {
        STABLE[number - ENTRIES_LEN]
    } else {
        FLEETING[number - ENTRIES_LEN - STABLE.len()]
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl Index {
    const fn new() -> Self {
        let mut this = Self { names: [NONE; SLOTS], habits: [Habit::Unknown; KNOWN], fields: [NONE; SLOTS] };
        let mut number = 0;
        while number < KNOWN {
            let name = known(number);
            let hash = hash::name(name);
            let mut slot = hash as usize & MASK;
            while this.names[slot] != NONE && !is_same(known(this.names[slot] as usize), name) {
                slot = (slot + 1) & MASK;
            }
            if this.names[slot] == NONE {
                this.names[slot] = number as u8;
            }
            let first = this.names[slot] as usize;
            if number >= ENTRIES_LEN {
                let is_stable = number < ENTRIES_LEN + STABLE.len();
                this.habits[first] = if is_stable { Habit::Stable } else { Habit::Fleeting };
            } else {
                if is_same(name, b"cookie") {
                    this.habits[first] = Habit::Cookie;
                }
                let mut slot = hash::more(hash, ENTRIES[number].1) as usize & MASK;
                while this.fields[slot] != NONE {
                    slot = (slot + 1) & MASK;
                }
                this.fields[slot] = number as u8;
            }
            number += 1;
        }
        this
    }
}

/// Known facts of `name`, whose hash is `hash`.
#[inline]
pub(crate) fn name(name: &[u8], hash: u64) -> Option<Name> {
    let mut slot = hash as usize & MASK;
    loop {
        let number = INDEX.names[slot];
        if number == NONE {
            return None;
        }
        let number = usize::from(number);
        if known(number) == name {
            let index = (number < ENTRIES_LEN).then_some(number as u8);
            return Some(Name { index, habit: INDEX.habits[number] });
        }
        slot = (slot + 1) & MASK;
    }
}

/// The entry with this name and value, whose hash is `hash`.
#[inline]
pub(crate) fn field(name: &[u8], value: &[u8], hash: u64) -> Option<u8> {
    let mut slot = hash as usize & MASK;
    loop {
        let number = INDEX.fields[slot];
        if number == NONE {
            return None;
        }
        if ENTRIES[usize::from(number)] == (name, value) {
            return Some(number);
        }
        slot = (slot + 1) & MASK;
    }
}

/// The entry with this index.
#[inline]
pub(crate) fn get(index: u64) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(usize::try_from(index).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(text: &[u8]) -> Option<Name> {
        name(text, hash::name(text))
    }

    #[test]
    fn every_entry_is_found_by_name_and_by_field() {
        for (number, (name, value)) in ENTRIES.iter().enumerate() {
            let found = field(name, value, hash::more(hash::name(name), value));
            assert_eq!(found.map(usize::from), Some(number));
            let first = ENTRIES.iter().position(|entry| entry.0 == *name);
            assert_eq!(look_up(name).and_then(|name| name.index).map(usize::from), first);
            assert_eq!(field(name, b"something else", hash::more(hash::name(name), b"something else")), None);
        }
        assert!(look_up(b"x-request-id").is_none());
        assert!(look_up(b"").is_none());
        assert_eq!(get(99), None);
        assert_eq!(get(u64::MAX), None);
    }

    #[test]
    fn habits_are_those_of_the_lists() {
        for stable in STABLE {
            assert_eq!(look_up(stable).map(|name| name.habit), Some(Habit::Stable));
        }
        for fleeting in FLEETING {
            assert_eq!(look_up(fleeting).map(|name| name.habit), Some(Habit::Fleeting));
        }
        assert_eq!(look_up(b"cookie").map(|name| name.habit), Some(Habit::Cookie));
        assert_eq!(look_up(b":path").map(|name| name.habit), Some(Habit::Unknown));
        assert_eq!(look_up(b"if-match").map(|name| name.index), Some(None));
    }

    /// A look-up of a missing name meets few entries.
    #[test]
    fn slots_are_spread() {
        let longest = |slots: &[u8; SLOTS]| slots.split(|slot| *slot == NONE).map(<[u8]>::len).max();
        assert!(longest(&INDEX.names) <= Some(6), "{:?}", longest(&INDEX.names));
        assert!(longest(&INDEX.fields) <= Some(6), "{:?}", longest(&INDEX.fields));
    }
}
