//! Faults of a `[[policy]]`.

use tiderace::transport::{ack_frequency::AckFrequency, fec::FecPolicy};

use super::{
    super::{
        Config, Policy, Route,
        read::{
            Fault,
            Step::{Key, Number},
        },
    },
    check_congestion, names,
};

pub(super) fn check(number: usize, policy: &Policy, config: &Config) -> Result<(), Fault> {
    let at = |key| [Key("policy"), Number(number), Key(key)];
    let whole = [Key("policy"), Number(number)];
    if policy.name.is_empty() || !policy.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(Fault::new(&whole, "expected a `name` of letters, digits, `-`, `_` and `.`"));
    }
    if config.policies[..number].iter().any(|other| other.name == policy.name) {
        return Err(Fault::new(&at("name"), format!("another policy has the name `{}`", policy.name)));
    }
    if let Some(text) = policy.listen.0.iter().find(|text| !config.listen.0.contains(text)) {
        return Err(Fault::new(&at("listen"), format!("`{text}` is not among the addresses in `listen`")));
    }
    for text in &policy.network.0 {
        text.parse::<crate::network::Network>().map_err(|message| Fault::new(&at("network"), message))?;
    }
    names(&policy.sni, &at("sni"))?;
    let routes: Vec<String> = config.routes.iter().map(Route::name).collect();
    if let Some(text) = policy.route.0.iter().find(|text| !routes.contains(text)) {
        let fault = Fault::new(&at("route"), format!("there is no route `{text}`"));
        return Err(fault.hint(format!("there are {}", routes.join(", "))));
    }
    if !policy.key.is_empty() && policy.http3 {
        let fault = Fault::new(
            &at("key"),
            "it draws the clients from which HTTP/3 is withheld, and this policy withholds nothing",
        );
        return Err(fault.hint("add `http3 = false`, or remove `key`"));
    }
    if !policy.http3 {
        return check_withholding(number, policy, config);
    }
    let changes = [&policy.congestion, &policy.fec, &policy.ack_frequency].iter().any(|text| !text.is_empty());
    if !changes && policy.early_data {
        let message = "expected `congestion`, `fec`, `ack-frequency` or `early-data = false`: it would change nothing";
        return Err(Fault::new(&whole, message));
    }
    if !policy.congestion.is_empty() {
        check_congestion(&policy.congestion, &at("congestion"))?;
    }
    for (key, text) in [("fec", &policy.fec), ("ack-frequency", &policy.ack_frequency)] {
        if !text.is_empty() && !policy.is_known_at_once() {
            let fault =
                Fault::new(&at(key), "it is agreed on with the first packets, when only address and network are known");
            return Err(fault.hint("leave `sni`, `alpn`, `route`, `rtt-above` and `loss-above` out of this policy"));
        }
    }
    if !policy.fec.is_empty() {
        policy.fec.parse::<FecPolicy>().map_err(|error| Fault::new(&at("fec"), error.to_string()))?;
    }
    if !policy.ack_frequency.is_empty() {
        let parsed = policy.ack_frequency.parse::<AckFrequency>();
        parsed.map_err(|error| Fault::new(&at("ack-frequency"), error.to_string()))?;
    }
    Ok(())
}

/// Checks a policy with `http3 = false`.
fn check_withholding(number: usize, policy: &Policy, config: &Config) -> Result<(), Fault> {
    let at = |key| [Key("policy"), Number(number), Key(key)];
    let foreign = [
        ("alpn", policy.alpn.0.is_empty()),
        ("route", policy.route.0.is_empty()),
        ("rtt-above", policy.rtt_above.is_none()),
        ("loss-above", policy.loss_above.is_none()),
        ("congestion", policy.congestion.is_empty()),
        ("fec", policy.fec.is_empty()),
        ("ack-frequency", policy.ack_frequency.is_empty()),
        ("early-data", policy.early_data),
    ];
    if let Some((key, _)) = foreign.into_iter().find(|(_, is_unset)| !is_unset) {
        let fault = Fault::new(&at(key), "a policy with `http3 = false` decides before there is a QUIC connection");
        return Err(fault
            .hint("it takes `name`, `listen`, `network`, `sni`, `share` and `key`; put the rest into another policy"));
    }
    if !config.http3.enabled {
        let fault = Fault::new(&at("http3"), "nothing is to be withheld: HTTP/3 is off");
        return Err(fault.hint("remove the policy, or set `enabled = true` in `[http3]`"));
    }
    Ok(())
}
