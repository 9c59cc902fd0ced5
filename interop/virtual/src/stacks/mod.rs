//! The stacks that take part, by name.

#![expect(clippy::duplicate_mod, reason = "`family` is compiled against quinn-proto and against noq-proto")]

mod noq;
#[cfg(feature = "quiche")]
mod quiche;
mod quinn;
mod tiderace;
mod tls;

use std::{fmt, str::FromStr};

use anyhow::{Result, bail};

use crate::{
    peer::{Peer, Settings, Side},
    run::Pair,
};

/// A QUIC stack that can be either end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// Our own.
    Tiderace,
    /// quinn-proto.
    Quinn,
    /// noq-proto.
    Noq,
    /// Cloudflare's quiche on BoringSSL; feature `quiche`.
    Quiche,
}

impl Stack {
    /// Every stack this build has.
    pub const ALL: &[Self] = &[
        Self::Tiderace,
        Self::Quinn,
        Self::Noq,
        #[cfg(feature = "quiche")]
        Self::Quiche,
    ];

    /// The pairs that are run when none is asked for: ours with itself and with every other, in both roles.
    pub fn pairs() -> Vec<Pair> {
        let all = Self::ALL.iter().flat_map(|client| Self::ALL.iter().map(|server| (*client, *server)));
        all.filter(|(client, server)| [client, server].contains(&&Self::Tiderace))
            .map(|(client, server)| Pair { client, server })
            .collect()
    }

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiderace => "tiderace",
            Self::Quinn => "quinn",
            Self::Noq => "noq",
            Self::Quiche => "quiche",
        }
    }

    /// Parts of the script that this stack cannot play by its nature, in words for the report.
    pub fn leaves_out(self) -> &'static [&'static str] {
        match self {
            Self::Tiderace => &[],
            Self::Quinn | Self::Noq => &[
                "starts with a window of 100 kB (with ten packets a lost part of its ServerHello can be held back for ever)",
                "starts no key update where the other end starts some (it does not wait until its own packets under those keys \
                 are acknowledged)",
            ],
            Self::Quiche => &[
                "never starts a key update (it follows the other end's)",
                "as a client is not sent key updates (it cannot read one that comes before HANDSHAKE_DONE)",
                "may end a stream with FIN that it resets (so a cut-off stream from it may look finished)",
                "always grants streams enough for the whole run (it gives no credit back for a stream that it stopped)",
                "may forget the code with which it was asked to stop sending",
                "draws randomness from BoringSSL (so its runs cannot be repeated bit for bit)",
            ],
        }
    }

    /// Returns whether it can be told to start a key update.
    pub fn starts_key_updates(self) -> bool {
        self != Self::Quiche
    }

    /// Returns whether it starts a key update only after a packet under the current keys was acknowledged (RFC 9001 §6.1), also when
    /// the other end started the current ones. quinn-proto 0.11 and noq-proto do not: when all that they sent under those keys
    /// was lost, the other end meets keys two ahead of its own, which nothing can read.
    pub fn waits_before_key_update(self) -> bool {
        !matches!(self, Self::Quinn | Self::Noq)
    }

    /// Returns whether it may send FIN on a stream that it resets, with the size that it had sent by then. quiche 0.30 leaves the
    /// stream in its queue, where an empty frame with FIN can overtake RESET_STREAM.
    pub fn resets_may_finish(self) -> bool {
        self == Self::Quiche
    }

    /// Returns whether, as a client, it reads packets under new keys before the handshake is confirmed. quiche 0.30 does not: when
    /// HANDSHAKE_DONE is lost and the server updates its keys, the client can never read the repeated one.
    pub fn reads_new_keys_before_confirmation(self) -> bool {
        self != Self::Quiche
    }

    /// One end of a connection on this stack.
    ///
    /// # Errors
    /// When the stack refuses the configuration, or is not in this build.
    pub fn peer(self, side: Side, settings: &Settings) -> Result<Box<dyn Peer>> {
        match self {
            Self::Tiderace => tiderace::peer(side, settings),
            Self::Quinn => quinn::peer(side, settings),
            Self::Noq => noq::peer(side, settings),
            #[cfg(feature = "quiche")]
            Self::Quiche => quiche::peer(side, settings),
            #[cfg(not(feature = "quiche"))]
            Self::Quiche => bail!("this build has no quiche\nhint: build with --features quiche"),
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stack {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tiderace" => Ok(Self::Tiderace),
            "quinn" => Ok(Self::Quinn),
            "noq" => Ok(Self::Noq),
            "quiche" if cfg!(feature = "quiche") => Ok(Self::Quiche),
            "quiche" => bail!("this build has no quiche\nhint: build with --features quiche"),
            _ => {
                let names: Vec<_> = Self::ALL.iter().map(|stack| stack.name()).collect();
                bail!("no stack is called `{text}`\nhint: there are {}", names.join(", "))
            }
        }
    }
}
