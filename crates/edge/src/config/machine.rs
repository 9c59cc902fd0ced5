//! Settings of a machine behind load balancers.

use std::{path::Path, sync::Arc};

use tiderace::{
    RoutableConfig,
    transport::{
        RoutableError,
        quic_lb::{QuicLbError, QuicLbParameters, ServerId},
    },
};

use super::{
    Config, Many, OtherMachine, ReadConnectionIds, Size,
    read::{ConfigCause, Fault, Step::Key},
    read_ids,
    section::section,
};
use crate::connection_id_key::{self, KeyFileError};

/// Bytes of server ID and nonce together that one block of the cipher has.
pub(crate) const ONE_BLOCK: usize = 16;

section! {
    /// `[load-balancer]`: several machines serve one address, behind load balancers such as `tiderace balance`. A reload
    /// changes `key` together with `config-id`, an upgrade `server-id` and `nonce-length` too. Where machines are listed, the new configuration
    /// has to be read before, and `server-id` stays.
    pub struct LoadBalancer {
        /// Server ID of this machine in connection IDs (QUIC-LB), in hexadecimal digits as in `0a01`: 1 to 11 bytes. No two machines have
        /// the same one, and all have as many bytes. Empty: load balancers cannot find this machine by connection IDs.
        server_id: String = String::new(),
        /// Config rotation bits of connection IDs, 0 to 6: the `config-id` of the load balancers that goes with `key`.
        config_id: u8 = 0,
        /// Bytes of the nonce in connection IDs, at least 8. 0: what fills one block of the cipher with the server ID, which is cheapest.
        nonce_length: u8 = 0,
        /// A file with the key of connection IDs, which all machines and load balancers share and others may not read: 32 hexadecimal
        /// digits, as `tiderace balance key FILE` makes them.
        key: String = String::new(),
        /// Networks of the load balancers that name the client of each datagram and of each connection of TCP (PROXY protocol, version 2),
        /// as in `192.0.2.0/28`. A connection from there has to begin with the header. From others nothing of the kind is accepted. One or
        /// a list.
        networks: Many = Many::default(),
        /// Other machines, to which packets of their connections are forwarded when they arrive here.
        #[serde(rename = "machine")]
        machines: Vec<OtherMachine> = Vec::new(),
        /// Further configurations of connection IDs that are read, of other machines and of later IDs of this one.
        connection_ids: Vec<ReadConnectionIds> = Vec::new(),
        /// Bytes per second that are forwarded to other machines, all together. Further packets are dropped.
        forward_rate: Size = Size(128 << 20),
    }
}

/// Nonce length of a configuration, where 0 stands for the rest of a block.
pub(crate) fn nonce_len(server_id_len: usize, nonce_length: u8) -> usize {
    match nonce_length {
        0 => ONE_BLOCK.saturating_sub(server_id_len),
        given => given.into(),
    }
}

impl LoadBalancer {
    /// Form of connection IDs; `None` where load balancers do not read them.
    ///
    /// # Errors
    /// When the key cannot be read, or nothing can be made of it all.
    pub(crate) fn routable(&self) -> Result<Option<RoutableConfig>, KeyFileError> {
        if self.server_id.is_empty() {
            return Ok(None);
        }
        let key = connection_id_key::read(Path::new(&self.key))?;
        Ok(self.with_key(key).ok())
    }

    /// Checks the form of connection IDs. An error is that of a setting, with the advice on its second line.
    pub(super) fn check_form(&self) -> Result<(), (&'static str, String)> {
        self.form([0; 16]).map(drop)
    }

    fn with_key(&self, key: [u8; 16]) -> Result<RoutableConfig, Fault> {
        self.form(key).map_err(|(key, error)| fault(key, error))
    }

    fn form(&self, key: [u8; 16]) -> Result<RoutableConfig, (&'static str, String)> {
        let server_id = self.server_id.parse::<ServerId>().map_err(|error| ("server-id", error.to_string()))?;
        let server_id_len = server_id.as_slice().len();
        let parameters = QuicLbParameters {
            config_id: self.config_id,
            server_id_len,
            nonce_len: nonce_len(server_id_len, self.nonce_length),
            key: Some(key),
            encodes_len: false,
        };
        let config = RoutableConfig { parameters, server_id };
        config.check().map_err(|error| {
            let key = match error {
                RoutableError::Parameters(QuicLbError::ConfigId(_)) => "config-id",
                _ if self.nonce_length == 0 => "server-id",
                _ => "nonce-length",
            };
            (key, error.to_string())
        })?;
        Ok(config)
    }
}

/// A fault of an error whose text has the advice on its second line.
pub(crate) fn fault(key: &'static str, error: impl std::fmt::Display) -> Fault {
    let text = error.to_string();
    let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
    let fault = Fault::new(&[Key("load-balancer"), Key(key)], message);
    if hint.is_empty() { fault } else { fault.hint(hint) }
}

/// Checks what needs no file.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let section = &config.load_balancer;
    for text in &section.networks.0 {
        let network = text.parse::<crate::network::Network>().map_err(|message| fault("networks", message))?;
        if network.is_everybody() {
            let message = format!("`{text}` has every client in it, and each could name another address");
            return Err(fault("networks", message).hint("name the networks of your load balancers alone"));
        }
    }
    read_ids::check(section)?;
    if section.server_id.is_empty() {
        let given = [
            ("config-id", section.config_id != 0),
            ("nonce-length", section.nonce_length != 0),
            ("key", !section.key.is_empty()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(fault(key, "expected `server-id` beside it").hint("server-id = \"0a01\"")),
            None => Ok(()),
        };
    }
    section.with_key([0; 16])?;
    if section.key.is_empty() {
        return Err(fault("server-id", "expected `key`: connection IDs would show machine, worker and process")
            .hint("`tiderace balance key FILE` makes one, for all machines and load balancers"));
    }
    if config.keys.file.is_empty() {
        let message = "expected `keys.file`: clients of a machine that has ended would wait for their idle timeout";
        return Err(fault("server-id", message).hint(
            "with a ring that all machines share, another machine ends such a connection, and sessions resume at each; \
             `tiderace edge keys --file FILE` makes one",
        ));
    }
    Ok(())
}

/// Checks the key.
pub(super) fn check_files(config: &Config) -> Result<(), Fault> {
    read_ids::check_files(&config.load_balancer)?;
    config.load_balancer.routable().map(drop).map_err(|error| {
        let hint = error.hint();
        let at = [Key("load-balancer"), Key("key")];
        Fault::of(&at, error.to_string(), ConfigCause::ConnectionIdKey(Arc::new(error))).hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, parse};

    fn parsed(section: &str) -> Result<Config, ConfigError> {
        let text = format!(
            "certificate = \"c\"\nkey = \"k\"\n[keys]\nfile = \"ring\"\n[[route]]\nto = \"http://a:1\"\n[load-balancer]\n{section}"
        );
        parse(&text, "edge.toml")
    }

    #[test]
    fn what_contradicts_has_a_place_and_advice() {
        let id = "server-id = \"0a01\"\nkey = \"lb.key\"\n";
        for (section, line, field, message) in [
            ("server-id = \"0a0\"\nkey = \"f\"", 8, "server-id", "hexadecimal"),
            ("server-id = \"0a01\"", 8, "server-id", "expected `key`"),
            (&format!("{id}config-id = 7"), 10, "config-id", "expected 0 to 6"),
            (&format!("{id}nonce-length = 3"), 10, "nonce-length", "at least 4"),
            (&format!("{id}nonce-length = 7"), 10, "nonce-length", "at least 8"),
            (&format!("{id}nonce-length = 18"), 10, "nonce-length", "at most 19"),
            ("server-id = \"000102030405060708\"\nkey = \"f\"", 8, "server-id", "at least 8"),
            ("config-id = 1", 8, "config-id", "expected `server-id`"),
            ("key = \"f\"", 8, "key", "expected `server-id`"),
            ("networks = \"10.0.0.0\"\nnonce-length = 8", 9, "nonce-length", "expected `server-id`"),
            ("networks = \"0.0.0.0/0\"", 8, "networks", "every client"),
            ("networks = \"10.0.0.0/99\"", 8, "networks", "expected a network"),
        ] {
            let error = parsed(section).unwrap_err();
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(&*format!("load-balancer.{field}"))));
            assert!(error.message.contains(message), "{section}: {error}");
            assert!(error.hint.is_some(), "{section}: {error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
        for good in [id, "", "networks = \"10.0.0.0/8\"", &format!("{id}config-id = 6\nnonce-length = 17")] {
            parsed(good).unwrap();
        }
    }

    #[test]
    fn machines_share_their_ring() {
        let text = "certificate = \"c\"\nkey = \"k\"\n[[route]]\nto = \"http://a:1\"\n\
                    [load-balancer]\nserver-id = \"01\"\nkey = \"f\"\n";
        let error = parse(text, "edge.toml").unwrap_err();
        assert!(error.message.contains("keys.file") && error.line == Some(6), "{error}");
    }

    #[test]
    fn one_block_is_the_default() {
        let LoadBalancer { server_id, .. } = parsed("server-id = \"0a01\"\nkey = \"f\"").unwrap().load_balancer;
        let config = LoadBalancer { server_id, ..LoadBalancer::default() }.with_key([1; 16]).unwrap();
        assert_eq!((config.parameters.server_id_len, config.parameters.nonce_len), (2, 14));
    }
}
