//! Content codings, and their negotiation (RFC 9110 §12.5.3).

use http::{HeaderMap, header};

/// Content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Zstd,
    Brotli,
    Gzip,
}

impl Coding {
    /// All codings, the densest first.
    pub(crate) const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Name in `accept-encoding` and `content-encoding`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// Coding of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|coding| coding.name() == name)
    }
}

/// The preference of a client among `offered`: the highest weight, among equals the first that is offered. `None` when it accepts none,
/// or prefers content without a coding.
pub(crate) fn preferred(fields: &HeaderMap, offered: &[Coding]) -> Option<Coding> {
    let mut weights: Vec<(&str, f32)> = Vec::new();
    for value in fields.get_all(header::ACCEPT_ENCODING) {
        for item in value.to_str().ok()?.split(',') {
            let mut parts = item.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            weights.push((name, weight.map_or(Some(1.0), |weight| weight.parse().ok()).unwrap_or(0.0)));
        }
    }
    let weight = |name: &str| {
        let exact = weights.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        // `x-gzip` is the same (RFC 9110 §8.4.1.3).
        let exact =
            exact.or_else(|| weights.iter().find(|(other, _)| name == "gzip" && other.eq_ignore_ascii_case("x-gzip")));
        exact
            .or_else(|| weights.iter().find(|(other, _)| *other == "*" && name != "identity"))
            .map(|(_, weight)| *weight)
    };
    let mut best: Option<(Coding, f32)> = None;
    for coding in offered {
        let weight = weight(coding.name()).unwrap_or(0.0);
        if weight > best.map_or(0.0, |(_, weight)| weight) {
            best = Some((*coding, weight));
        }
    }
    best.filter(|(_, weight)| self::identity(&weights) <= *weight).map(|(coding, _)| coding)
}

/// The weight of content without a coding, when a client names it.
fn identity(weights: &[(&str, f32)]) -> f32 {
    weights.iter().find(|(name, _)| name.eq_ignore_ascii_case("identity")).map_or(0.0, |(_, weight)| *weight)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn preferred(accept: &str, offered: &[Coding]) -> Option<Coding> {
        let fields = (!accept.is_empty()).then(|| (header::ACCEPT_ENCODING, HeaderValue::from_str(accept).unwrap()));
        super::preferred(&fields.into_iter().collect(), offered)
    }

    #[test]
    fn the_client_chooses_among_what_is_offered() {
        let (zstd, br, gzip) = (Some(Coding::Zstd), Some(Coding::Brotli), Some(Coding::Gzip));
        for (accept, expected) in [
            ("", None),
            ("gzip, deflate, br, zstd", zstd),
            ("gzip, deflate, br", br),
            ("GZIP", gzip),
            ("x-gzip", gzip),
            ("*", zstd),
            ("*;q=0.1, gzip;q=0.5", gzip),
            ("zstd;q=0, *", br),
            ("zstd;q=0, br;q=0, gzip;q=0", None),
            ("identity", None),
            ("identity;q=0.5, gzip;q=0.4", None),
            ("identity;q=0.5, gzip;q=0.6", gzip),
            ("gzip;q=nonsense", None),
            ("deflate", None),
        ] {
            assert_eq!(preferred(accept, &Coding::ALL), expected, "{accept}");
        }
        assert_eq!(preferred("gzip, br", &[Coding::Gzip, Coding::Brotli]), gzip, "the first that is offered");
    }
}
