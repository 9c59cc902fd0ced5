//! Kinds of clients, and how many of each a load has.

/// Kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http3,
    Http2,
    /// A stream of a private protocol, which stays open.
    Private,
    /// The same over TLS on TCP, and streams of one request in turn.
    Qmux,
    /// HTTP/3 behind a NAT that gives the client another port after each answer.
    Rebinding,
    /// HTTP/3 from another socket with each request: at once, and after the validation of the path, in turn.
    Migrating,
}

/// Numbers of connections of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    held: [(Kind, u64); 6],
    /// Downloads at the same time, over HTTP/3 and HTTP/2 in turn.
    pub(crate) downloads: u64,
}

impl Mix {
    /// Shares of `total` connections: a tenth rebinds, a tenth migrates, a fifth has the private protocol over QUIC, a thirteenth over TCP,
    /// an eighth HTTP/2, a twentieth are downloads. The others have HTTP/3.
    pub(crate) fn of(total: u64) -> Self {
        assert!(total >= 8, "{total} connections are too few for all kinds");
        let share = |part: u64, least: u64| (total / part).max(least);
        let (moving, downloads, others) = (share(10, 1), share(20, 2), [share(8, 1), share(5, 1), share(13, 1)]);
        let rest = total - 2 * moving - downloads - others.iter().sum::<u64>();
        let held = [
            (Kind::Http3, rest),
            (Kind::Http2, others[0]),
            (Kind::Private, others[1]),
            (Kind::Qmux, others[2]),
            (Kind::Rebinding, moving),
            (Kind::Migrating, moving),
        ];
        Self { held, downloads }
    }

    pub(crate) fn total(&self) -> u64 {
        self.downloads + self.held.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Kinds of all held connections.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        self.held.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| kind))
    }

    pub(crate) fn print(&self) {
        for (kind, count) in self.held {
            println!("measured connections, {kind:?}: {count}");
        }
        println!("measured connections, downloads: {}", self.downloads);
    }
}
