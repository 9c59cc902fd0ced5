//! Fate of ECN marks, and of the identifier of L4S among them.

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// ECN fields (RFC 3168 §5, RFC 9331 §4).
pub(in crate::probe) const NOT_ECT: u8 = 0;
pub(in crate::probe) const ECT1: u8 = 1;
pub(in crate::probe) const ECT0: u8 = 2;
pub(in crate::probe) const CE: u8 = 3;

/// Packets sent with one mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::probe) struct Marked {
    pub(in crate::probe) sent: u32,
    /// Packets that arrived, by the ECN field that they arrived with.
    arrived: [u32; 4],
}

impl Marked {
    /// Packets of which these arrived, with these ECN fields.
    pub(in crate::probe) fn new(sent: u32, fields: impl IntoIterator<Item = u8>) -> Self {
        let mut arrived = [0; 4];
        for field in fields {
            arrived[usize::from(field & 3)] += 1;
        }
        Self { sent, arrived }
    }

    /// Packets that arrived.
    pub(in crate::probe) fn arrived(&self) -> u32 {
        self.arrived.iter().sum()
    }

    /// Packets that arrived with this ECN field.
    pub(in crate::probe) fn with(&self, field: u8) -> u32 {
        self.arrived[usize::from(field & 3)]
    }
}

impl Serialize for Marked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Marked", 5)?;
        out.serialize_field("sent", &self.sent)?;
        for (name, field) in [("not_ect", NOT_ECT), ("ect0", ECT0), ("ect1", ECT1), ("ce", CE)] {
            out.serialize_field(name, &self.with(field))?;
        }
        out.end()
    }
}

/// Fate of ECN marks in a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::probe) struct Ecn {
    pub(in crate::probe) ect0: Marked,
    pub(in crate::probe) ect1: Marked,
    pub(in crate::probe) ce: Marked,
}

/// Fate of ECT(1), which identifies packets of L4S.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::probe) enum L4s {
    /// Arrives as ECT(1), or as CE from an L4S queue.
    Survives,
    /// Arrives without a mark.
    Cleared,
    /// Arrives as ECT(0): an L4S queue takes the packets for classic traffic.
    ChangedToEct0,
    /// Always arrives as CE: the sender slows down without congestion.
    ChangedToCe,
    /// Packets with ECT(1) do not arrive, while packets with other marks do.
    Lost,
}

/// Fate of ECT(0) and CE, the marks of RFC 3168.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::probe) enum Classic {
    /// Arrive as they were sent, or ECT(0) as CE from a queue that marks.
    Survive,
    /// Some of them arrive as they were sent.
    SurviveInPart,
    /// None arrives as it was sent.
    Cleared,
}

impl Ecn {
    /// Enters the packets that were sent with this mark.
    pub(in crate::probe) fn set(&mut self, mark: u8, packets: Marked) {
        match mark {
            ECT0 => self.ect0 = packets,
            ECT1 => self.ect1 = packets,
            _ => self.ce = packets,
        }
    }

    /// Returns whether any marked packet arrived.
    pub(in crate::probe) fn has_arrivals(&self) -> bool {
        [self.ect0, self.ect1, self.ce].iter().any(|packets| packets.arrived() > 0)
    }

    /// Packets that arrived of those sent with ECT(0) or CE, and how many of them still had their mark.
    pub(in crate::probe) fn classic(&self) -> (u32, u32) {
        (self.ect0.arrived() + self.ce.arrived(), self.ect0.with(ECT0) + self.ce.with(CE))
    }

    /// Fate of ECT(0) and CE. `None`: none of them arrived.
    pub(in crate::probe) fn classic_fate(&self) -> Option<Classic> {
        let (arrived, kept) = self.classic();
        // A mark of congestion is no change by the path.
        let kept = kept + self.ect0.with(CE);
        match kept {
            _ if arrived == 0 => None,
            0 => Some(Classic::Cleared),
            kept if kept < arrived => Some(Classic::SurviveInPart),
            _ => Some(Classic::Survive),
        }
    }

    /// Fate of ECT(1). `None`: no marked packet arrived.
    ///
    /// A path that changes a part of the marks does not keep them: senders cannot rely on it.
    pub(in crate::probe) fn l4s(&self) -> Option<L4s> {
        let sent = &self.ect1;
        let [cleared, ect0] = [NOT_ECT, ECT0].map(|field| sent.with(field));
        if sent.arrived() == 0 {
            return (self.classic().0 > 0).then_some(L4s::Lost);
        }
        Some(match (cleared, ect0, sent.with(ECT1)) {
            (0, 0, 0) => L4s::ChangedToCe,
            (0, 0, _) => L4s::Survives,
            (cleared, ect0, _) if cleared >= ect0 => L4s::Cleared,
            _ => L4s::ChangedToEct0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn l4s(fields: &[u8]) -> Option<L4s> {
        Ecn { ect1: Marked::new(8, fields.iter().copied()), ..Ecn::default() }.l4s()
    }

    #[test]
    fn the_fate_of_ect1_follows_from_what_arrives() {
        for (fields, fate) in [
            (&[ECT1, ECT1, ECT1][..], L4s::Survives),
            // An L4S queue marks some.
            (&[ECT1, CE, CE], L4s::Survives),
            (&[CE, CE, CE], L4s::ChangedToCe),
            (&[NOT_ECT, NOT_ECT], L4s::Cleared),
            (&[ECT0, ECT0, CE], L4s::ChangedToEct0),
            // One of several parallel paths clears marks.
            (&[ECT1, ECT1, ECT1, NOT_ECT], L4s::Cleared),
            (&[ECT1, ECT0, ECT0, NOT_ECT], L4s::ChangedToEct0),
        ] {
            assert_eq!(l4s(fields), Some(fate), "{fields:?}");
        }
        assert_eq!(l4s(&[]), None);
        let others = Ecn { ect0: Marked::new(8, [ECT0; 8]), ect1: Marked::new(8, []), ..Ecn::default() };
        assert_eq!((others.l4s(), others.classic()), (Some(L4s::Lost), (8, 8)));
    }

    #[test]
    fn the_fate_of_classic_marks_follows_from_what_arrives() {
        let fate = |ect0: &[u8], ce: &[u8]| {
            let [ect0, ce] = [ect0, ce].map(|fields| Marked::new(8, fields.iter().copied()));
            Ecn { ect0, ce, ..Ecn::default() }.classic_fate()
        };
        assert_eq!(fate(&[ECT0, CE], &[CE]), Some(Classic::Survive));
        assert_eq!(fate(&[ECT0, ECT0], &[NOT_ECT]), Some(Classic::SurviveInPart));
        assert_eq!(fate(&[NOT_ECT], &[NOT_ECT]), Some(Classic::Cleared));
        assert_eq!(fate(&[ECT1], &[]), Some(Classic::Cleared));
        assert_eq!(fate(&[], &[]), None);
    }

    #[test]
    fn counts_have_names() {
        let marked = Marked::new(9, [ECT1, ECT1, NOT_ECT, ECT0, CE, CE, CE]);
        let json = serde_json::to_value(marked).unwrap();
        assert_eq!(json, serde_json::json!({ "sent": 9, "not_ect": 1, "ect0": 1, "ect1": 2, "ce": 3 }));
    }
}
