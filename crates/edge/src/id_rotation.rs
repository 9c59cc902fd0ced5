//! Configuration of the connection IDs that name this machine (QUIC-LB), over all reloads.
//!
//! A reload may change key and `config-id`: IDs are made for the new configuration then, those of the older ones are still read, and
//! connections replace theirs. An upgrade may change the length and the server ID as well: each process makes IDs of one form, and the newer
//! one reads those of the older processes by their config rotation bits. All else would lose connections, so it is refused: another form at a
//! reload, another key under the same `config-id`, and any change where other machines read the IDs of this one, because they read one
//! configuration.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tiderace::RoutableConfig;

use crate::config::LoadBalancer;

#[derive(Debug, Default)]
struct State {
    current: Option<RoutableConfig>,
    older: Vec<RoutableConfig>,
}

/// Configurations of connection IDs: the current one, and those that are read.
#[derive(Debug, Default)]
pub(crate) struct IdRotation(Mutex<State>);

/// Change of the connection IDs by a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdChange {
    None,
    Rotated(RoutableConfig),
    Refused,
}

impl IdRotation {
    /// Begins with the configuration of the start, and those that the process before has read.
    pub(crate) fn new(current: Option<RoutableConfig>, older: Vec<RoutableConfig>) -> Self {
        Self(Mutex::new(State { current, older }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Option<RoutableConfig> {
        self.state().current
    }

    pub(crate) fn older(&self) -> Vec<RoutableConfig> {
        self.state().older.clone()
    }

    /// Judges the configuration of a reload, in place of `before`.
    pub(crate) fn judge(&self, next: Option<RoutableConfig>, before: &LoadBalancer, after: &LoadBalancer) -> IdChange {
        match (self.current(), next) {
            (before, next) if before == next => IdChange::None,
            (Some(current), Some(next)) => {
                let (old, new) = (current.parameters, next.parameters);
                let has_form = old.server_id_len == new.server_id_len && old.nonce_len == new.nonce_len;
                let is_read_by_others = !before.machines.is_empty() || !after.machines.is_empty();
                match current.server_id == next.server_id
                    && has_form
                    && is_told_apart(&current, &next, is_read_by_others)
                {
                    true => IdChange::Rotated(next),
                    false => IdChange::Refused,
                }
            }
            _ => IdChange::Refused,
        }
    }

    /// Configurations of a newer process: its own, and those that it reads. `None` when it could not read the IDs of the process before, whose
    /// configuration is `current`, and which has read `older`.
    pub(crate) fn of_newer_process(
        current: Option<RoutableConfig>,
        older: Vec<RoutableConfig>,
        next: Option<RoutableConfig>,
        is_read_by_others: bool,
    ) -> Option<Self> {
        let rotation = Self::new(current, older);
        match (current, next) {
            (current, next) if current == next => {}
            (Some(current), Some(next)) if is_told_apart(&current, &next, is_read_by_others) => rotation.rotate(next),
            _ => return None,
        }
        Some(rotation)
    }

    /// Adopts a configuration. IDs of the one before are still read, until another one gets its `config-id`.
    pub(crate) fn rotate(&self, next: RoutableConfig) {
        let mut state = self.state();
        let before = state.current.replace(next);
        state.older.extend(before);
        state.older.retain(|older| older.parameters.config_id != next.parameters.config_id);
    }
}

/// Returns whether all that read the IDs of two configurations know which is which.
fn is_told_apart(current: &RoutableConfig, next: &RoutableConfig, is_read_by_others: bool) -> bool {
    current.parameters.config_id != next.parameters.config_id && !is_read_by_others
}

#[cfg(test)]
mod tests {
    use tiderace::transport::quic_lb::QuicLbParameters;

    use super::*;
    use crate::config::OtherMachine;

    fn config(config_id: u8, key: u8, nonce_len: usize, server_id: &str) -> RoutableConfig {
        let parameters =
            QuicLbParameters { config_id, server_id_len: 2, nonce_len, key: Some([key; 16]), encodes_len: false };
        RoutableConfig { parameters, server_id: server_id.parse().unwrap() }
    }

    #[test]
    fn a_key_changes_with_its_number_and_nothing_else_does() {
        let first = config(0, 1, 14, "0a01");
        let (rotation, alone) = (IdRotation::new(Some(first), Vec::new()), LoadBalancer::default());
        let judge = |next| rotation.judge(next, &alone, &alone);
        assert_eq!(judge(Some(first)), IdChange::None);
        let second = config(1, 2, 14, "0a01");
        assert_eq!(judge(Some(second)), IdChange::Rotated(second));
        for other in [config(0, 2, 14, "0a01"), config(1, 2, 10, "0a01"), config(1, 2, 14, "0a02")] {
            assert_eq!(judge(Some(other)), IdChange::Refused, "{other:?}");
        }
        assert_eq!(judge(None), IdChange::Refused);
        assert_eq!(IdRotation::new(None, Vec::new()).judge(Some(first), &alone, &alone), IdChange::Refused);
        let other = OtherMachine { server_id: "0a02".to_owned(), address: "10.0.0.2:443".to_owned() };
        let several = LoadBalancer { machines: vec![other], ..LoadBalancer::default() };
        for (before, after) in [(&several, &alone), (&alone, &several)] {
            assert_eq!(rotation.judge(Some(second), before, after), IdChange::Refused);
        }
    }

    #[test]
    fn a_newer_process_may_have_another_length_and_server_id() {
        let (oldest, old) = (config(2, 9, 14, "0a01"), config(0, 1, 14, "0a01"));
        let judge = |next, others| IdRotation::of_newer_process(Some(old), vec![oldest], next, others);
        let same = judge(Some(old), true).unwrap();
        assert_eq!((same.current(), same.older()), (Some(old), vec![oldest]));
        for next in [config(1, 2, 10, "0a01"), config(1, 2, 14, "0a07"), config(1, 1, 9, "0a07")] {
            let newer = judge(Some(next), false).unwrap();
            assert_eq!((newer.current(), newer.older()), (Some(next), vec![oldest, old]));
            assert!(judge(Some(next), true).is_none(), "other machines read the IDs");
        }
        assert!(judge(Some(config(0, 2, 14, "0a01")), false).is_none(), "the bits do not tell them apart");
        assert!(judge(None, false).is_none());
        assert!(IdRotation::of_newer_process(None, Vec::new(), Some(old), false).is_none());
        assert!(IdRotation::of_newer_process(None, Vec::new(), None, false).is_some());
    }

    #[test]
    fn older_ones_are_read_until_another_one_has_their_number() {
        let (first, second, third) = (config(0, 1, 14, "0a01"), config(1, 2, 14, "0a01"), config(0, 3, 14, "0a01"));
        let rotation = IdRotation::new(Some(first), Vec::new());
        rotation.rotate(second);
        assert_eq!((rotation.current(), rotation.older()), (Some(second), vec![first]));
        rotation.rotate(third);
        assert_eq!((rotation.current(), rotation.older()), (Some(third), vec![second]));
    }
}
