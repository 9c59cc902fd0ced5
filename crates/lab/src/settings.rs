//! Settings of our stack, from fields of a scenario: any field of [`Profile`] may be set, and so be a factor.

use serde_json::Value;
use transport::{Profile, ack_frequency::AckFrequency, congestion::Algorithm};
use units::duration_text;

use crate::{
    scenario::{Fault, Selection, Settings, nearest},
    tunnelling::Tunnel,
};

/// Setup of our own stack.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The settings of the transport, at both ends.
    pub profile: Profile,
    /// The client has been at the server before each connection: it resumes the session, and streams that it opens before the
    /// handshake is complete carry early data.
    pub early_data: bool,
    /// The tunnel that carries its packets.
    pub tunnel: Tunnel,
}

/// Names of the congestion controllers.
pub fn controllers() -> Vec<&'static str> {
    Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect()
}

/// The fields of a scenario's profile that are not among [`Profile`]'s.
const EARLY_DATA: &str = "early_data";
const TUNNEL: &str = "tunnel";

/// The profiles that a scenario selects, in its order.
///
/// # Errors
/// When a controller or a field does not exist, or a value does not fit.
pub fn profiles(selection: &Selection) -> Result<Vec<Setup>, Fault> {
    let mut profiles: Vec<Setup> = Vec::new();
    for controller in &selection.congestion {
        let each = selection.ack.iter().flat_map(|ack| selection.tunnel.iter().map(move |tunnel| (ack, tunnel)));
        for (ack, tunnel) in each {
            let mut own = Settings::from_iter([("congestion".to_owned(), Value::from(controller.as_str()))]);
            let mut name = controller.clone();
            if *ack != AckFrequency::Off {
                own.insert("ack_frequency".to_owned(), Value::from(ack.to_string()));
                name = format!("{controller} ack={ack}");
            }
            if *tunnel != Tunnel::None {
                own.insert(TUNNEL.to_owned(), Value::from(tunnel.name()));
                name = tunnel.name_of(&name);
            }
            let made = profile(&name, &own, &selection.settings, "contenders.congestion");
            profiles.push(made.map_err(|fault| controller_fault(fault, controller))?);
        }
    }
    for (index, own) in selection.profiles.iter().enumerate() {
        let field = format!("contenders.profiles.{index}");
        let Some(name) = own.get("name").and_then(Value::as_str) else {
            return Err(Fault { field, message: "a profile needs a name".to_owned(), hint: None });
        };
        if profiles.iter().any(|setup| setup.profile.name == name) {
            return Err(Fault { field, message: format!("`{name}` is named twice"), hint: None });
        }
        profiles.push(profile(name, own, &selection.settings, &field)?);
    }
    Ok(profiles)
}

/// One profile: the usual values, those for all contenders, and its own.
fn profile(name: &str, own: &Settings, all: &Settings, field: &str) -> Result<Setup, Fault> {
    let fault = |message: String, hint: Option<String>| Fault { field: field.to_owned(), message, hint };
    let mut usual = serde_json::to_value(Profile::default()).map_err(|error| fault(error.to_string(), None))?;
    usual[EARLY_DATA] = Value::from(false);
    usual[TUNNEL] = Value::from(Tunnel::None.name());
    for (settings, place) in [(all, "contenders.settings"), (own, field)] {
        for (key, value) in settings {
            set(&mut usual, key, value).map_err(|(message, hint)| Fault {
                field: format!("{place}.{key}"),
                message,
                hint,
            })?;
        }
    }
    usual["name"] = Value::from(name);
    let early_data = usual.as_object_mut().and_then(|fields| fields.remove(EARLY_DATA)).unwrap_or_default();
    let Value::Bool(early_data) = early_data else {
        return Err(fault(format!("`{EARLY_DATA}` is true or false, not {early_data}"), None));
    };
    let tunnel = usual.as_object_mut().and_then(|fields| fields.remove(TUNNEL)).unwrap_or_default();
    let tunnel = serde_json::from_value(tunnel.clone())
        .map_err(|_| fault(format!("`{TUNNEL}` is none, datagrams or stream, not {tunnel}"), None))?;
    let profile = serde_json::from_value(usual).map_err(|error| fault(error.to_string(), None))?;
    Ok(Setup { profile, early_data, tunnel })
}

/// The usual mistake in a list of names: an unknown name.
fn controller_fault(fault: Fault, name: &str) -> Fault {
    let known = controllers();
    if known.contains(&name) {
        return fault;
    }
    let hint = meant(name, &known);
    Fault { message: format!("there is no congestion controller `{name}`"), hint: Some(hint), ..fault }
}

/// Known names, the one closest to `written` first, if one is close.
fn meant(written: &str, known: &[&str]) -> String {
    let there_are = format!("there are {}", known.join(", "));
    match nearest(written, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? {there_are}"),
        None => there_are,
    }
}

/// Sets a field of a table that has all fields. A table of fields sets each of them.
fn set(table: &mut Value, key: &str, value: &Value) -> Result<(), (String, Option<String>)> {
    let Some(fields) = table.as_object_mut() else {
        return Err((format!("`{key}` is no field: there is no table around it"), None));
    };
    let plain = |name: &str| name.replace('-', "_");
    let Some(name) = fields.keys().find(|name| plain(name) == plain(key)).cloned() else {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        return Err((format!("a profile has no field `{key}`"), Some(meant(key, &names))));
    };
    let place = &mut fields[&name];
    match (&mut *place, value) {
        (Value::Object(inner), Value::Object(given)) if !is_duration(inner) => {
            given.iter().try_for_each(|(key, value)| set(place, key, value))
        }
        (current, Value::String(text)) if current.is_null() || current.as_object().is_some_and(is_duration) => {
            let span = duration_text::parse(text).ok();
            *current = match span {
                Some(span) => serde_json::to_value(span).unwrap_or_default(),
                None => value.clone(),
            };
            Ok(())
        }
        (current, value) => {
            *current = value.clone();
            Ok(())
        }
    }
}

/// Recognises serde's form of a span of time.
fn is_duration(fields: &serde_json::Map<String, Value>) -> bool {
    fields.len() == 2 && fields.contains_key("secs") && fields.contains_key("nanos")
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use super::*;

    fn selection(text: &str) -> Selection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn any_field_can_be_set() {
        let made = profiles(&selection(
            r#"
            congestion = ["cubic"]
            settings = { acks = { every = 10 }, idle-timeout = "12 s" }
            [[profiles]]
            name = "patient"
            congestion = "newreno"
            acks = { max_delay = "100 ms", every = 4 }
            keep_alive = "5 s"
            pacing = false
            early-data = true
            tunnel = "stream"
            "#,
        ))
        .unwrap();
        assert_eq!((made[0].early_data, made[1].early_data), (false, true));
        assert_eq!((made[0].tunnel, made[1].tunnel), (Tunnel::None, Tunnel::Stream));
        let made: Vec<Profile> = made.into_iter().map(|setup| setup.profile).collect();
        assert_eq!(
            (made[0].name.as_str(), made[0].acks.every, made[0].idle_timeout),
            ("cubic", 10, Duration::from_secs(12))
        );
        assert_eq!((made[1].name.as_str(), made[1].acks.every, made[1].pacing), ("patient", 4, false));
        assert_eq!(
            (made[1].acks.max_delay, made[1].keep_alive),
            (Duration::from_millis(100), Some(Duration::from_secs(5)))
        );
        let made = profiles(&selection("congestion = [\"cubic\"]\ntunnel = [\"none\", \"datagrams\"]")).unwrap();
        assert_eq!(
            made.iter().map(|setup| setup.profile.name.as_str()).collect::<Vec<_>>(),
            ["cubic", "cubic in datagrams"]
        );
        assert_eq!((made[0].tunnel, made[1].tunnel), (Tunnel::None, Tunnel::Datagrams));
        assert_eq!(profiles(&selection("")).unwrap().len(), 2);
        assert_eq!(profiles(&selection("[[profiles]]\nname = \"a\"")).unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, field, message, hint) in [
            (
                "congestion = [\"cubik\"]",
                "contenders.congestion",
                "no congestion controller `cubik`",
                "did you mean `cubic`? there are newreno, cubic, bbr1, bbr2, bbr3, auto",
            ),
            ("settings = { ack = 1 }", "contenders.settings.ack", "no field `ack`", "did you mean `acks`?"),
            (
                "[[profiles]]\nname = \"x\"\nacks = { evry = 1 }",
                "contenders.profiles.0.acks",
                "no field `evry`",
                "did you mean `every`? there are every, max_delay, obey",
            ),
            ("[[profiles]]\nacks = { every = 1 }", "contenders.profiles.0", "needs a name", ""),
            ("settings = { pacing = 3 }", "contenders.congestion", "", ""),
            (
                "settings = { tunnel = \"tcp\" }",
                "contenders.congestion",
                "is none, datagrams or stream, not \"tcp\"",
                "",
            ),
            ("settings = { early_data = 1 }", "contenders.congestion", "`early_data` is true or false, not 1", ""),
        ] {
            let fault = profiles(&selection(text)).unwrap_err();
            assert!(fault.field == field && fault.message.contains(message), "{fault:?}");
            assert!(fault.hint.unwrap_or_default().contains(hint));
        }
    }
}
