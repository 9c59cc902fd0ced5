//! Written versions of qlog.

use std::{fmt, io::Write, str::FromStr};

use super::Version03;

/// Version of qlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The drafts that the module documentation names.
    #[default]
    Newest,
    /// Version 0.3, for qvis.
    V03,
}

impl Format {
    /// Output for a [`QlogWriter`](super::QlogWriter) that writes this version into `out`.
    pub fn output(self, out: impl Write + Send + 'static) -> Box<dyn Write + Send> {
        match self {
            Self::Newest => Box::new(out),
            Self::V03 => Box::new(Version03::new(out)),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newest => "newest",
            Self::V03 => "0.3",
        })
    }
}

/// Text that names no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `newest` or `0.3`")]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        [Self::Newest, Self::V03].into_iter().find(|format| format.to_string() == text).ok_or(UnknownFormat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for format in [Format::Newest, Format::V03] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!("0.4".parse::<Format>(), Err(UnknownFormat));
    }
}
