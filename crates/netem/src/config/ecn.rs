//! Treatment of ECN marks by a link.

use serde::{Deserialize, Serialize};

use crate::packet::Ecn;

/// Treatment of ECN marks behind the queue, as by a router that rewrites the former TOS byte. Marks of the queue pass it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EcnTreatment {
    /// Marks arrive as they are.
    #[default]
    Pass,
    /// All marks are cleared.
    Bleach,
    /// ECT(1), the identifier of L4S (RFC 9331 §4), is cleared.
    BleachEct1,
    /// ECT(1) arrives as ECT(0): both had the same meaning in RFC 3168 §5.
    Ect1ToEct0,
    /// ECT(1) arrives as CE.
    Ect1ToCe,
}

impl EcnTreatment {
    /// Returns whether marks arrive as they are.
    pub fn is_pass(&self) -> bool {
        *self == Self::Pass
    }

    /// Mark with which a packet arrives.
    #[inline]
    pub const fn apply(self, mark: Ecn) -> Ecn {
        match (self, mark) {
            (Self::Bleach, _) | (Self::BleachEct1, Ecn::Ect1) => Ecn::NotEct,
            (Self::Ect1ToEct0, Ecn::Ect1) => Ecn::Ect0,
            (Self::Ect1ToCe, Ecn::Ect1) => Ecn::Ce,
            (_, mark) => mark,
        }
    }
}
