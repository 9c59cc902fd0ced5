//! Table of the other machines that serve the same address.

use std::net::SocketAddr;

use tiderace::transport::quic_lb::ServerId;

use super::{
    Config, examine,
    machine::LoadBalancer,
    read::{
        Fault,
        Step::{Key, Number},
    },
    section::section,
};

section! {
    /// `[[load-balancer.machine]]`: another machine that serves the same address. A packet whose connection ID has its server ID is
    /// forwarded to it. Each machine lists all others.
    pub struct OtherMachine {
        /// Server ID of the machine, in hexadecimal digits. All machines have as many bytes.
        server_id: String = String::new(),
        /// IP address and port of the machine's gateway, which this machine reaches.
        address: String = String::new(),
    }
}

impl LoadBalancer {
    /// The other machines, as they were checked.
    pub(crate) fn others(&self) -> impl Iterator<Item = (ServerId, SocketAddr)> {
        self.machines.iter().filter_map(|machine| Some((machine.server_id.parse().ok()?, address(&machine.address)?)))
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.parse().ok()?;
    (address.port() != 0).then(|| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Checks the table.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let section = &config.load_balancer;
    if section.machines.is_empty() {
        return Ok(());
    }
    let first = [Key("load-balancer"), Key("machine"), Number(0), Key("server-id")];
    let Ok(own) = section.server_id.parse::<ServerId>() else {
        let message = "expected `server-id` in [load-balancer]: without it, connection IDs name no machine";
        return Err(Fault::new(&first, message).hint("server-id = \"0a01\""));
    };
    if section.forward_rate.0 == 0 {
        let message = "a rate of 0 forwards nothing";
        return Err(Fault::new(&[Key("load-balancer"), Key("forward-rate")], message)
            .hint("leave out [[load-balancer.machine]]"));
    }
    let mut known: Vec<(ServerId, SocketAddr)> = Vec::new();
    for (number, machine) in section.machines.iter().enumerate() {
        let fault = |key, message: String| {
            Fault::new(&[Key("load-balancer"), Key("machine"), Number(number), Key(key)], message)
        };
        let id = machine.server_id.parse::<ServerId>().map_err(|error| {
            let text = error.to_string();
            let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
            fault("server-id", message.to_owned()).hint(hint)
        })?;
        let Some(address) = address(&machine.address) else {
            let message =
                format!("expected an IP address with a port as in `10.0.0.2:443`, found `{}`", machine.address);
            return Err(fault("address", message).hint("names are not looked up"));
        };
        let len = own.as_slice().len();
        if id.as_slice().len() != len {
            let message = format!("expected {len} bytes as in `server-id` of this machine, found `{id}`");
            return Err(fault("server-id", message).hint("all machines have server IDs of one length"));
        }
        if id == own {
            return Err(fault("server-id", format!("`{id}` is the server ID of this machine"))
                .hint("list the other machines alone; no two machines have the same server ID"));
        }
        if let Some(other) = known.iter().position(|(other, _)| *other == id) {
            return Err(fault("server-id", format!("machine {} has the same server ID", other + 1))
                .hint("connections of one would end at the other"));
        }
        if let Some(other) = known.iter().position(|(_, other)| *other == address) {
            return Err(fault("address", format!("machine {} has the same address", other + 1))
                .hint("each machine has an address of its own beside the one that clients use"));
        }
        if examine::is_gateway(config, address) {
            return Err(fault("address", format!("`{address}` is this machine itself"))
                .hint("list the other machines alone, each with an address that clients do not use"));
        }
        known.push((id, address));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigError, parse};

    fn parsed(section: &str) -> Result<Config, ConfigError> {
        let text = format!(
            "listen = \"127.0.0.1:4433\"\ncertificate = \"c\"\nkey = \"k\"\n[keys]\nfile = \"ring\"\n\
             [[route]]\nto = \"http://a:1\"\n[load-balancer]\n{section}"
        );
        parse(&text, "edge.toml")
    }

    fn machine(id: &str, address: &str) -> String {
        format!("[[load-balancer.machine]]\nserver-id = \"{id}\"\naddress = \"{address}\"\n")
    }

    #[test]
    fn a_table_that_contradicts_has_a_place_and_advice() {
        let own = "server-id = \"0a01\"\nkey = \"lb.key\"\n";
        let other = machine("0a02", "10.0.0.2:443");
        for (section, line, field, message) in [
            (other.clone(), 10, "machine[1].server-id", "expected `server-id` in [load-balancer]"),
            (format!("{own}{}", machine("0a01", "10.0.0.2:443")), 12, "machine[1].server-id", "of this machine"),
            (format!("{own}{}", machine("0a0", "10.0.0.2:443")), 12, "machine[1].server-id", "hexadecimal"),
            (format!("{own}{}", machine("0a", "10.0.0.2:443")), 12, "machine[1].server-id", "expected 2 bytes"),
            (format!("{own}{other}{}", machine("0a02", "10.0.0.3:443")), 15, "machine[2].server-id", "machine 1 has"),
            (format!("{own}{other}{}", machine("0a03", "10.0.0.2:443")), 16, "machine[2].address", "machine 1 has"),
            (format!("{own}{}", machine("0a02", "there:443")), 13, "machine[1].address", "expected an IP address"),
            (format!("{own}{}", machine("0a02", "10.0.0.2:0")), 13, "machine[1].address", "expected an IP address"),
            (format!("{own}{}", machine("0a02", "127.0.0.1:4433")), 13, "machine[1].address", "this machine itself"),
            (format!("{own}forward-rate = \"0 B\"\n{other}"), 11, "forward-rate", "forwards nothing"),
        ] {
            let error = parsed(&section).unwrap_err();
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(&*format!("load-balancer.{field}"))));
            assert!(error.message.contains(message) && error.hint.is_some(), "{section}: {error}");
        }
    }

    #[test]
    fn a_good_table_is_taken() {
        let own = "server-id = \"0a01\"\nkey = \"lb.key\"\n";
        let text = format!("{own}{}{}", machine("0a02", "10.0.0.2:443"), machine("0a03", "[::ffff:10.0.0.3]:443"));
        let config = parsed(&text).unwrap();
        let others: Vec<String> =
            config.load_balancer.others().map(|(id, address)| format!("{id} {address}")).collect();
        assert_eq!(others, ["0a02 10.0.0.2:443", "0a03 10.0.0.3:443"]);
    }
}
