//! Network type that a client reports in the header field `ECT` (Network Information API, a Client Hint).

use http::{HeaderMap, HeaderName};

/// Client Hint with the effective connection type.
const ECT: HeaderName = HeaderName::from_static("ect");

/// Effective connection type of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum NetworkType {
    /// Nothing was reported, or something that the API does not define.
    #[default]
    Unreported,
    /// `slow-2g`.
    Slow2g,
    /// `2g`.
    TwoG,
    /// `3g`.
    ThreeG,
    /// `4g` and everything faster.
    FourG,
}

impl NetworkType {
    /// Number of types.
    pub const COUNT: usize = 5;
    /// All types, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [Self::Unreported, Self::Slow2g, Self::TwoG, Self::ThreeG, Self::FourG];

    /// Name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreported => "unreported",
            Self::Slow2g => "slow-2g",
            Self::TwoG => "2g",
            Self::ThreeG => "3g",
            Self::FourG => "4g",
        }
    }

    /// The type that a request reports.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut fields = headers.get_all(ECT).iter();
        let (Some(value), None) = (fields.next(), fields.next()) else { return Self::Unreported };
        let value = value.as_bytes().trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
        let is = |known: &Self| *known != Self::Unreported && known.name().as_bytes().eq_ignore_ascii_case(value);
        Self::ALL.into_iter().find(is).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn reported_types_and_garbage() {
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ECT, HeaderValue::from_bytes(value).unwrap());
            }
            NetworkType::of(&headers)
        };
        assert_eq!(of(&[b"4g"]), NetworkType::FourG);
        assert_eq!(of(&[b" \"slow-2g\" "]), NetworkType::Slow2g);
        assert_eq!(of(&[b"3G"]), NetworkType::ThreeG);
        let long = vec![b'4'; 60_000];
        for garbage in [&b""[..], b"5g", b"\xff\xfe", b"4g, 3g", b"unreported", b"\"4g", &long] {
            assert_eq!(of(&[garbage]), NetworkType::Unreported, "{garbage:?}");
        }
        assert_eq!(of(&[]), NetworkType::Unreported);
        assert_eq!(of(&[b"4g", b"3g"]), NetworkType::Unreported, "two answers are none");
    }
}
