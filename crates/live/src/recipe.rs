//! Settings of the kernel's TCP in the name of a contender: `kernel-cubic:http1:6:fast-open`.

use core::{fmt, str::FromStr};

use units::DataSize;

/// Most parallel TCP connections of a client.
const MOST_CONNECTIONS: u8 = 8;
/// Maximum segment sizes that the kernel takes.
const SEGMENT_SIZES: core::ops::RangeInclusive<u32> = 88..=32_767;

/// Way in which a client and a server use the kernel's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// HTTP/1.1 in place of HTTP/2: one exchange at a time on each connection.
    pub(crate) http1: bool,
    /// TCP connections of a client, all made at once.
    pub(crate) connections: u8,
    /// TCP Fast Open (RFC 7413): the SYN carries the ClientHello, as at a server that the client knows.
    pub(crate) fast_open: bool,
    /// TLS 1.2 in place of 1.3: one more round trip.
    pub(crate) tls12: bool,
    /// Key exchange of X25519 alone: a ClientHello without a post-quantum key fits in one packet.
    pub(crate) x25519: bool,
    /// Multipath TCP (RFC 8684), over the one path that there is.
    pub(crate) mptcp: bool,
    /// Send buffer (`SO_SNDBUF`) in place of one that the kernel tunes.
    pub(crate) send_buffer: Option<DataSize>,
    /// Maximum segment size in bytes (`TCP_MAXSEG`, RFC 9293 §3.7.1) in place of the one of the device's MTU: 40 less than the largest packet
    /// over IPv4. The options of a segment count.
    pub(crate) segment_size: Option<u32>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            http1: false,
            connections: 1,
            fast_open: false,
            tls12: false,
            x25519: false,
            mptcp: false,
            send_buffer: None,
            segment_size: None,
        }
    }
}

impl Recipe {
    /// Settings that a name may carry, for messages.
    pub(crate) const GRAMMAR: &str = "`:http1`, `:2` to `:8` (connections), `:fast-open`, `:tls1.2`, `:x25519`, `:mptcp`, `:buffer=SIZE`, `:mss=BYTES`";

    /// The protocols, for people.
    pub(crate) fn protocol(self) -> String {
        let http = if self.http1 { "HTTP/1.1" } else { "HTTP/2" };
        let tls = if self.tls12 { "1.2" } else { "1.3" };
        let tcp = if self.mptcp { "MPTCP" } else { "TCP" };
        let connections = if self.connections == 1 { "one connection" } else { "connections at once" };
        let count = if self.connections == 1 { String::new() } else { format!("{} ", self.connections) };
        format!("{http} over TLS {tls} over {tcp}, {count}{connections}")
    }
}

impl FromStr for Recipe {
    type Err = String;

    /// Reads what follows the controller in a name, each part behind a colon.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut recipe = Self::default();
        for part in text.split(':').skip(1) {
            match part.split_once('=') {
                None if part == "http1" => recipe.http1 = true,
                None if part == "fast-open" => recipe.fast_open = true,
                None if part == "tls1.2" => recipe.tls12 = true,
                None if part == "x25519" => recipe.x25519 = true,
                None if part == "mptcp" => recipe.mptcp = true,
                None if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) => {
                    recipe.connections = part
                        .parse()
                        .ok()
                        .filter(|count| (1..=MOST_CONNECTIONS).contains(count))
                        .ok_or_else(|| format!("`{part}` connections: 1 to {MOST_CONNECTIONS} are possible"))?;
                }
                Some(("buffer", size)) => {
                    let size: DataSize = size.parse().map_err(|error| format!("`{part}`: {error}"))?;
                    // Less than the kernel's smallest, and more than its interface can say.
                    if !(4_608..=1 << 30).contains(&size.as_bytes()) {
                        return Err(format!("`{part}`: a send buffer has 4,608 bytes to 1 GiB"));
                    }
                    recipe.send_buffer = Some(size);
                }
                Some(("mss", bytes)) => {
                    let size = bytes.parse().ok().filter(|size| SEGMENT_SIZES.contains(size));
                    let (least, most) = (SEGMENT_SIZES.start(), SEGMENT_SIZES.end());
                    let error = || format!("`{part}`: a maximum segment size has {least} to {most} bytes");
                    recipe.segment_size = Some(size.ok_or_else(error)?);
                }
                _ => return Err(format!("`{part}` is no setting of the kernel's TCP")),
            }
        }
        Ok(recipe)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.http1, "http1"),
            (self.fast_open, "fast-open"),
            (self.tls12, "tls1.2"),
            (self.x25519, "x25519"),
            (self.mptcp, "mptcp"),
        ];
        for (_, name) in flags.into_iter().filter(|(is_set, _)| *is_set) {
            write!(f, ":{name}")?;
        }
        if self.connections != 1 {
            write!(f, ":{}", self.connections)?;
        }
        match self.send_buffer.map(DataSize::as_bytes) {
            Some(bytes) if bytes % 1024 == 0 => write!(f, ":buffer={}KiB", bytes / 1024)?,
            Some(bytes) => write!(f, ":buffer={bytes}")?,
            None => {}
        }
        self.segment_size.map_or(Ok(()), |bytes| write!(f, ":mss={bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_spelling() {
        for text in ["", ":http1:6", ":fast-open:tls1.2:x25519:mptcp:8:buffer=128KiB:mss=1310", ":buffer=5000"] {
            assert_eq!(text.parse::<Recipe>().unwrap().to_string(), text);
        }
        assert_eq!(":4:http1".parse::<Recipe>().unwrap().to_string(), ":http1:4");
        assert_eq!(":1".parse::<Recipe>(), Ok(Recipe::default()));
        assert_eq!(":buffer=128KiB".parse::<Recipe>().unwrap().send_buffer, Some(DataSize::from_bytes(131_072)));
    }

    #[test]
    fn what_is_no_setting_is_named() {
        for (text, said) in [
            (":http3", "`http3` is no setting"),
            (":9", "1 to 8"),
            (":0", "1 to 8"),
            (":4444444444", "1 to 8"),
            (":", "`` is no setting"),
            (":buffer=12 bananas", "buffer=12 bananas"),
            (":buffer=100", "4,608 bytes"),
            (":buffer", "`buffer` is no setting"),
            (":mss=87", "88 to 32767 bytes"),
            (":mss=1 kB", "`mss=1 kB`"),
        ] {
            let error = text.parse::<Recipe>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn protocols_are_told() {
        assert_eq!(Recipe::default().protocol(), "HTTP/2 over TLS 1.3 over TCP, one connection");
        let text = ":http1:6:tls1.2".parse::<Recipe>().unwrap().protocol();
        assert_eq!(text, "HTTP/1.1 over TLS 1.2 over TCP, 6 connections at once");
    }
}
