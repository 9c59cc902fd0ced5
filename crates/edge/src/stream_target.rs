//! Targets of protocols other than HTTP, by the names in TLS.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::config;

/// Handler of a private protocol.
pub(crate) struct StreamTarget {
    pub(crate) config: config::Stream,
    /// Places with all back ends together.
    pub(crate) places: Arc<Semaphore>,
}

impl StreamTarget {
    pub(crate) fn new(config: &config::Stream, places: &Arc<Semaphore>) -> Self {
        Self { config: config.clone(), places: places.clone() }
    }

    /// Returns whether a back end takes datagrams.
    pub(crate) fn takes_datagrams(&self) -> bool {
        !self.config.datagrams_to.is_empty()
    }

    /// Returns whether the target serves this protocol at this name.
    pub(crate) fn fits(&self, alpn: &[u8], name: Option<&str>) -> bool {
        self.fits_one_of(&self.config.alpn, alpn, name)
    }

    /// Returns whether the target serves this protocol over QMux at this name.
    pub(crate) fn fits_qmux(&self, alpn: &[u8], name: Option<&str>) -> bool {
        self.fits_one_of(&self.config.qmux, alpn, name)
    }

    /// Returns whether streams in early data, which may be replays, are served.
    // RFC 9001 §9.2: what a protocol does twice with a copy of its first bytes, only its operator knows.
    pub(crate) fn takes_early_data(&self) -> bool {
        self.config.early_data
    }

    fn fits_one_of(&self, protocols: &config::Many, alpn: &[u8], name: Option<&str>) -> bool {
        let named = |pattern: &String| match (name, pattern.strip_prefix('*')) {
            (None, _) => false,
            (Some(name), None) => name.eq_ignore_ascii_case(pattern),
            (Some(name), Some(suffix)) => {
                let name = name.to_ascii_lowercase();
                name.strip_suffix(&suffix.to_ascii_lowercase())
                    .is_some_and(|label| !label.is_empty() && !label.contains('.'))
            }
        };
        let spoken = protocols.0.iter().any(|own| own.as_bytes() == alpn);
        spoken && (self.config.sni.0.is_empty() || self.config.sni.0.iter().any(named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Many, Stream};

    #[test]
    fn who_answers_for_a_protocol() {
        let places = Arc::new(Semaphore::new(1));
        let many = |list: &[&str]| Many(list.iter().map(|text| (*text).to_owned()).collect());
        let any = StreamTarget::new(&Stream { alpn: many(&["redis", "x"]), ..Stream::default() }, &places);
        assert!(any.fits(b"redis", None) && any.fits(b"x", Some("a")) && !any.fits(b"h3", None));
        let named = StreamTarget::new(
            &Stream { alpn: many(&["x"]), sni: many(&["A.b", "*.c.d"]), ..Stream::default() },
            &places,
        );
        for (name, fits) in
            [(Some("a.B"), true), (Some("z.C.d"), true), (Some("c.d"), false), (Some("y.z.c.d"), false), (None, false)]
        {
            assert_eq!(named.fits(b"x", name), fits, "{name:?}");
        }
        let over_tcp =
            StreamTarget::new(&Stream { alpn: many(&["x"]), qmux: many(&["x-qx"]), ..Stream::default() }, &places);
        assert!(over_tcp.fits_qmux(b"x-qx", None) && !over_tcp.fits_qmux(b"x", None) && !over_tcp.fits(b"x-qx", None));
    }
}
