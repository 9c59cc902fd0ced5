//! Configuration of the connection IDs that name this machine (QUIC-LB), over all reloads.
//!
//! A reload may change key and `config-id`: IDs are made for the new configuration then, those of the older ones are still read, and
//! connections replace theirs. An upgrade may change the length and the server ID as well: each process makes IDs of one form, and the newer
//! one reads those of the older processes by their config rotation bits. All else would lose connections, so it is refused: another form at a
//! reload, and another key under the same `config-id`.
//!
//! Other machines that read the IDs of this one have to know a configuration before this machine makes IDs of it: it is listed at all of them
//! first, and a change to one that is not listed here is refused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tiderace::RoutableConfig;

use crate::{config::LoadBalancer, connection_id_key::KeyFileError};

#[derive(Debug, Default)]
struct State {
    current: Option<RoutableConfig>,
    /// Those that the configuration file lists.
    listed: Vec<RoutableConfig>,
    older: Vec<RoutableConfig>,
}

impl State {
    /// Configurations that are read beside the current one.
    fn read(&self) -> Vec<RoutableConfig> {
        let id = |config: &RoutableConfig| config.parameters.config_id;
        let is_listed = |older: &&RoutableConfig| self.listed.iter().any(|listed| id(listed) == id(older));
        self.listed.iter().chain(self.older.iter().filter(|older| !is_listed(older))).copied().collect()
    }
}

/// Configurations of connection IDs: the current one, and those that are read.
#[derive(Debug, Default)]
pub(crate) struct IdRotation(Mutex<State>);

/// Settings of connection IDs in a configuration file.
#[derive(Debug, Default)]
pub(crate) struct IdSettings {
    /// Form of the IDs that are made.
    pub(crate) made: Option<RoutableConfig>,
    /// Further forms that are read.
    pub(crate) read: Vec<RoutableConfig>,
    /// Other machines are listed, which read the IDs of this one.
    pub(crate) is_read_by_others: bool,
}

impl IdSettings {
    /// Settings of a file.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub(crate) fn new(config: &LoadBalancer) -> Result<Self, KeyFileError> {
        let is_read_by_others = !config.machines.is_empty();
        Ok(Self { made: config.routable()?, read: config.read_ids()?, is_read_by_others })
    }
}

/// Change of the connection IDs by a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdChange {
    None,
    /// Others are read, and the same are made.
    Read,
    Rotated(RoutableConfig),
    Refused,
}

impl IdRotation {
    /// Begins with the configuration of the start.
    pub(crate) fn new(settings: IdSettings) -> Self {
        Self(Mutex::new(State { current: settings.made, listed: settings.read, older: Vec::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn current(&self) -> Option<RoutableConfig> {
        self.state().current
    }

    /// Configurations that are read beside the current one.
    pub(crate) fn older(&self) -> Vec<RoutableConfig> {
        self.state().read()
    }

    /// Judges the settings of a reload. `was_read_by_others` tells whether other machines are listed so far.
    pub(crate) fn judge(&self, next: &IdSettings, was_read_by_others: bool) -> IdChange {
        let state = self.state();
        match (state.current, next.made) {
            (before, made) if before == made => {
                if state.listed == next.read {
                    IdChange::None
                } else {
                    IdChange::Read
                }
            }
            (Some(current), Some(made)) => {
                let (old, new) = (current.parameters, made.parameters);
                let has_form = old.server_id_len == new.server_id_len && old.nonce_len == new.nonce_len;
                let by_others = was_read_by_others || next.is_read_by_others;
                match current.server_id == made.server_id
                    && has_form
                    && is_told_apart(&current, &made, by_others.then(|| state.read()))
                {
                    true => IdChange::Rotated(made),
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
        next: IdSettings,
        was_read_by_others: bool,
    ) -> Option<Self> {
        let by_others = was_read_by_others || next.is_read_by_others;
        match (current, next.made) {
            (current, made) if current == made => {}
            (Some(current), Some(made)) if is_told_apart(&current, &made, by_others.then(|| older.clone())) => {}
            _ => return None,
        }
        let rotation = Self(Mutex::new(State { current, listed: Vec::new(), older }));
        rotation.apply(next);
        Some(rotation)
    }

    /// Adopts settings. IDs of the configuration before are still read, until another one gets its `config-id`.
    pub(crate) fn apply(&self, next: IdSettings) {
        let mut state = self.state();
        state.listed = next.read;
        if let Some(made) = next.made
            && let Some(before) = state.current.replace(made)
            && before != made
        {
            state.older.push(before);
            state.older.retain(|older| older.parameters.config_id != made.parameters.config_id);
        }
    }
}

/// Returns whether all that read the IDs of two configurations know which is which. `read` are those that this machine has read, where
/// other machines read its IDs: the operator has listed the new one first, at all machines.
fn is_told_apart(current: &RoutableConfig, next: &RoutableConfig, read: Option<Vec<RoutableConfig>>) -> bool {
    current.parameters.config_id != next.parameters.config_id && read.is_none_or(|read| read.contains(next))
}

#[cfg(test)]
mod tests {
    use tiderace::transport::quic_lb::QuicLbParameters;

    use super::*;

    fn config(config_id: u8, key: u8, nonce_len: usize, server_id: &str) -> RoutableConfig {
        let parameters =
            QuicLbParameters { config_id, server_id_len: 2, nonce_len, key: Some([key; 16]), encodes_len: false };
        RoutableConfig { parameters, server_id: server_id.parse().unwrap() }
    }

    fn made(made: Option<RoutableConfig>) -> IdSettings {
        IdSettings { made, ..IdSettings::default() }
    }

    #[test]
    fn a_key_changes_with_its_number_and_nothing_else_does() {
        let first = config(0, 1, 14, "0a01");
        let rotation = IdRotation::new(made(Some(first)));
        let judge = |next| rotation.judge(&made(next), false);
        assert_eq!(judge(Some(first)), IdChange::None);
        let second = config(1, 2, 14, "0a01");
        assert_eq!(judge(Some(second)), IdChange::Rotated(second));
        for other in [config(0, 2, 14, "0a01"), config(1, 2, 10, "0a01"), config(1, 2, 14, "0a02")] {
            assert_eq!(judge(Some(other)), IdChange::Refused, "{other:?}");
        }
        assert_eq!(judge(None), IdChange::Refused);
        assert_eq!(IdRotation::default().judge(&made(Some(first)), false), IdChange::Refused);
    }

    #[test]
    fn what_other_machines_read_is_listed_before_it_is_made() {
        let (first, second) = (config(0, 1, 14, "0a01"), config(1, 2, 14, "0a01"));
        let rotation = IdRotation::new(made(Some(first)));
        let several = |made, read: &[_]| IdSettings { made: Some(made), read: read.to_vec(), is_read_by_others: true };
        // To list it in the same reload is too late: packets are on their way.
        for (next, before) in
            [(several(second, &[]), false), (made(Some(second)), true), (several(second, &[second]), true)]
        {
            assert_eq!(rotation.judge(&next, before), IdChange::Refused);
        }
        let listing = several(first, &[second]);
        assert_eq!(rotation.judge(&listing, true), IdChange::Read);
        rotation.apply(listing);
        assert_eq!((rotation.current(), rotation.older()), (Some(first), vec![second]));
        assert_eq!(rotation.judge(&several(first, &[second]), true), IdChange::None);
        assert_eq!(
            rotation.judge(&several(config(1, 9, 14, "0a01"), &[first]), true),
            IdChange::Refused,
            "another key"
        );
        let next = several(second, &[first]);
        assert_eq!(rotation.judge(&next, true), IdChange::Rotated(second));
        rotation.apply(next);
        assert_eq!((rotation.current(), rotation.older()), (Some(second), vec![first]), "once");
        rotation.apply(several(second, &[]));
        assert_eq!(rotation.older(), [first], "IDs of this machine may be under way");
    }

    #[test]
    fn a_newer_process_may_have_another_length_and_server_id() {
        let (oldest, old) = (config(2, 9, 14, "0a01"), config(0, 1, 14, "0a01"));
        let judge = |next, others| IdRotation::of_newer_process(Some(old), vec![oldest], made(next), others);
        let same = judge(Some(old), true).unwrap();
        assert_eq!((same.current(), same.older()), (Some(old), vec![oldest]));
        for next in [config(1, 2, 10, "0a01"), config(1, 2, 14, "0a07"), config(1, 1, 9, "0a07")] {
            let newer = judge(Some(next), false).unwrap();
            assert_eq!((newer.current(), newer.older()), (Some(next), vec![oldest, old]));
            assert!(judge(Some(next), true).is_none(), "other machines do not read these IDs");
        }
        let back = judge(Some(oldest), true).unwrap();
        assert_eq!((back.current(), back.older()), (Some(oldest), vec![old]), "which other machines read");
        assert!(judge(Some(config(0, 2, 14, "0a01")), false).is_none(), "the bits do not tell them apart");
        assert!(judge(None, false).is_none());
        let from_none = |next| IdRotation::of_newer_process(None, Vec::new(), made(next), false);
        assert!(from_none(Some(old)).is_none() && from_none(None).is_some());
    }

    #[test]
    fn older_ones_are_read_until_another_one_has_their_number() {
        let (first, second, third) = (config(0, 1, 14, "0a01"), config(1, 2, 14, "0a01"), config(0, 3, 14, "0a01"));
        let rotation = IdRotation::new(made(Some(first)));
        rotation.apply(made(Some(second)));
        assert_eq!((rotation.current(), rotation.older()), (Some(second), vec![first]));
        rotation.apply(made(Some(third)));
        assert_eq!((rotation.current(), rotation.older()), (Some(third), vec![second]));
    }
}
