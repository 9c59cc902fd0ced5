//! Configurations of connection IDs that other machines make, or will make, while one takes the place of another.

use std::{path::Path, sync::Arc};

use tiderace::RoutableConfig;

use super::{
    machine::LoadBalancer,
    read::{
        ConfigCause, Fault,
        Step::{Key, Number},
    },
    section::section,
};
use crate::connection_id_key::{self, KeyFileError};

section! {
    /// `[[load-balancer.connection-ids]]`: connection IDs of another key or length that this machine reads, and does not make. Where other
    /// machines are listed, all of them read a configuration before the first makes IDs of it.
    pub struct ReadConnectionIds {
        /// Config rotation bits, 0 to 6.
        config_id: u8 = 0,
        /// Bytes of the nonce, at least 8. 0: what fills one block of the cipher with the server ID.
        nonce_length: u8 = 0,
        /// A file with the key, which others may not read.
        key: String = String::new(),
    }
}

impl ReadConnectionIds {
    /// The form of connection IDs of `own` with this configuration.
    fn as_made(&self, own: &LoadBalancer) -> LoadBalancer {
        LoadBalancer {
            server_id: own.server_id.clone(),
            config_id: self.config_id,
            nonce_length: self.nonce_length,
            key: self.key.clone(),
            ..LoadBalancer::default()
        }
    }
}

impl LoadBalancer {
    /// Configurations that are read and not made.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub(crate) fn read_ids(&self) -> Result<Vec<RoutableConfig>, KeyFileError> {
        self.connection_ids.iter().filter_map(|ids| ids.as_made(self).routable().transpose()).collect()
    }
}

fn at(number: usize, key: &'static str) -> [super::read::Step; 4] {
    [Key("load-balancer"), Key("connection-ids"), Number(number), Key(key)]
}

/// Checks what needs no file.
pub(super) fn check(own: &LoadBalancer) -> Result<(), Fault> {
    for (number, ids) in own.connection_ids.iter().enumerate() {
        if own.server_id.is_empty() {
            return Err(Fault::new(&at(number, "config-id"), "expected `server-id` in [load-balancer]")
                .hint("server-id = \"0a01\""));
        }
        if ids.key.is_empty() {
            return Err(Fault::new(&at(number, "config-id"), "expected `key` beside it")
                .hint("the key file that the other machines have, or will have"));
        }
        let others = own.connection_ids[..number].iter().map(|other| other.config_id);
        if std::iter::once(own.config_id).chain(others).any(|other| other == ids.config_id) {
            let message = format!("another configuration has the ID {}", ids.config_id);
            return Err(Fault::new(&at(number, "config-id"), message)
                .hint("0 to 6 are free to use, each for one key at a time"));
        }
        // The faults of `[load-balancer]`, at their place here.
        ids.as_made(own).check_form().map_err(|(key, error)| {
            let (message, hint) = error.split_once("\nhint: ").unwrap_or((&error, "as the other machines have it"));
            Fault::new(&at(number, if key == "config-id" { key } else { "nonce-length" }), message).hint(hint)
        })?;
    }
    Ok(())
}

/// Checks the keys.
pub(super) fn check_files(own: &LoadBalancer) -> Result<(), Fault> {
    for (number, ids) in own.connection_ids.iter().enumerate() {
        connection_id_key::read(Path::new(&ids.key)).map_err(|error| {
            let hint = error.hint();
            Fault::of(&at(number, "key"), error.to_string(), ConfigCause::ConnectionIdKey(Arc::new(error))).hint(hint)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigError, parse};

    fn parsed(section: &str) -> Result<crate::config::Config, ConfigError> {
        parse(
            &format!(
                "certificate = \"c\"\nkey = \"k\"\n[keys]\nfile = \"ring\"\n[[route]]\nto = \"http://a:1\"\n[load-balancer]\n{section}"
            ),
            "edge.toml",
        )
    }

    #[test]
    fn a_configuration_that_cannot_be_read_has_a_place_and_advice() {
        let own = "server-id = \"0a01\"\nkey = \"lb.key\"\n";
        let ids = "[[load-balancer.connection-ids]]\n";
        for (section, line, field, message) in [
            (format!("{ids}config-id = 1\nkey = \"f\"\n"), 9, "1].config-id", "expected `server-id`"),
            (format!("{own}{ids}config-id = 1\n"), 11, "1].config-id", "expected `key`"),
            (format!("{own}{ids}config-id = 0\nkey = \"f\"\n"), 11, "1].config-id", "has the ID 0"),
            (format!("{own}{ids}config-id = 7\nkey = \"f\"\n"), 11, "1].config-id", "expected 0 to 6"),
            (format!("{own}{ids}config-id = 1\nnonce-length = 7\nkey = \"f\"\n"), 12, "1].nonce-length", "at least 8"),
            (
                format!("{own}{ids}config-id = 1\nkey = \"f\"\n{ids}config-id = 1\nkey = \"g\"\n"),
                14,
                "2].config-id",
                "has the ID 1",
            ),
        ] {
            let error = parsed(&section).unwrap_err();
            let place = format!("load-balancer.connection-ids[{field}");
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(&*place)), "{section}{error}");
            assert!(error.message.contains(message) && error.hint.is_some(), "{section}: {error}");
        }
        parsed(&format!("{own}{ids}config-id = 1\nnonce-length = 9\nkey = \"f\"\n")).unwrap();
    }
}
