//! Roster of a scenario: our profiles, other stacks if the program has them, and pairs of rivals.
//!
//! Other stacks are in a separate workspace. A program that is built with them registers them once, with [`join`]; in any other program
//! such a contender has a name and cannot be run.

use std::{collections::BTreeMap, sync::OnceLock};

use crate::{
    contender::{BuildError, Contender, Factor, Identity, Nodes, RunSpec},
    rivals::Rivals,
    scenario::{Fault, Programs, Selection, Settings, nearest},
    settings,
    tiderace::with_setup,
};

/// Stacks of others that a program has.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    /// Names of the contenders, as in `[contenders] stacks`.
    pub names: fn() -> Vec<&'static str>,
    /// Tells whether there is one with this name: one of `names`, or one of them with settings in its name.
    pub has: fn(&str) -> bool,
    /// Makes the one with this name; the reason when it cannot be made.
    pub make: fn(&str) -> Result<Box<dyn Contender>, String>,
}

static OTHERS: OnceLock<Others> = OnceLock::new();

/// Registers the other stacks of this program. Only the first call counts.
pub fn join(others: Others) {
    let _ = OTHERS.set(others);
}

/// The stacks that a scenario names and this program does not have.
pub fn absent(selection: &Selection) -> Vec<String> {
    let has = |name: &String| OTHERS.get().is_some_and(|others| (others.has)(name));
    selection.stacks.iter().filter(|name| !has(name)).cloned().collect()
}

/// The contenders in their order: controllers and profiles, stacks of others, commands, rivals.
///
/// # Errors
/// When a controller, a field or a rival does not exist, or a value does not fit.
pub fn contenders(selection: &Selection) -> Result<Vec<Box<dyn Contender>>, Fault> {
    let profiles = settings::profiles(selection)?;
    let mut contenders: Vec<_> = profiles.into_iter().map(with_setup).collect();
    for name in &selection.stacks {
        contenders.push(other(name)?);
    }
    contenders.extend(selection.commands.iter().map(|programs| Box::new(Commanded(programs.clone())) as _));
    for (index, [first, second]) in selection.rivals.iter().enumerate() {
        let rival = |name: &str| rival(selection, name, &format!("contenders.rivals.{index}"));
        contenders.push(Box::new(Rivals::new(rival(first)?, rival(second)?)));
    }
    if let Some(name) = &selection.beside {
        let pair =
            |contender| Ok(Box::new(Rivals::beside(contender, rival(selection, name, "contenders.beside")?)) as _);
        contenders = contenders.into_iter().map(pair).collect::<Result<_, Fault>>()?;
    }
    Ok(contenders)
}

/// A stack of others, or one that only has its name.
fn other(name: &str) -> Result<Box<dyn Contender>, Fault> {
    match OTHERS.get() {
        Some(others) if (others.has)(name) => {
            (others.make)(name).map_err(|message| Fault { field: "contenders.stacks".to_owned(), message, hint: None })
        }
        _ => Ok(Box::new(Absent(name.to_owned()))),
    }
}

/// A rival that `field` names: a profile of the scenario, a controller, or a stack of others that the scenario names.
fn rival(selection: &Selection, name: &str, field: &str) -> Result<Box<dyn Contender>, Fault> {
    if selection.stacks.iter().any(|stack| stack == name) {
        return other(name);
    }
    let own = |profile: &&Settings| profile.get("name").and_then(serde_json::Value::as_str) == Some(name);
    let one = match selection.profiles.iter().find(own) {
        Some(profile) => Selection { congestion: Vec::new(), profiles: vec![profile.clone()], ..selection.clone() },
        None => Selection { congestion: vec![name.to_owned()], profiles: Vec::new(), ..selection.clone() },
    };
    let found =
        settings::profiles(&Selection { ack: vec![selection.ack[0]], tunnel: vec![selection.tunnel[0]], ..one });
    let found = found.map_err(|fault| {
        let mut known = crate::tiderace::controllers();
        known.extend(selection.stacks.iter().map(String::as_str));
        known.extend(selection.profiles.iter().filter_map(|profile| profile.get("name")?.as_str()));
        let meant = nearest(name, known.iter().copied()).map(|near| format!("did you mean `{near}`? "));
        let hint = Some(format!("{}there are {}", meant.unwrap_or_default(), known.join(", ")));
        Fault {
            field: field.to_owned(),
            message: format!("there is no contender `{name}`"),
            hint: fault.hint.and(hint),
        }
    })?;
    found.into_iter().next().map(with_setup).ok_or_else(|| Fault {
        field: field.to_owned(),
        message: format!("there is no contender `{name}`"),
        hint: None,
    })
}

/// A stack that this program does not have.
struct Absent(String);

impl Contender for Absent {
    fn identity(&self) -> Identity {
        Identity { name: self.0.clone(), version: "not in this program".to_owned(), parameters: BTreeMap::new() }
    }

    fn factors(&self) -> Vec<Factor> {
        Vec::new()
    }

    fn build(&self, _spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        Err(BuildError(format!("this program does not have the stack `{}`", self.0)))
    }
}

/// A server and a client that are commands: `live` runs them.
struct Commanded(Programs);

impl Contender for Commanded {
    fn identity(&self) -> Identity {
        let Programs { name, server, client, port } = &self.0;
        let parameters = [("server", server.clone()), ("client", client.clone()), ("port", port.to_string())];
        Identity {
            name: name.clone(),
            version: "commands".to_owned(),
            parameters: parameters.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    fn factors(&self) -> Vec<Factor> {
        Vec::new()
    }

    fn build(&self, _spec: &RunSpec<'_>) -> Result<Nodes, BuildError> {
        Err(BuildError(format!("`{}` is a command, and runs in real time only", self.0.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(text: &str) -> Selection {
        toml::from_str(text).unwrap()
    }

    fn names(selection: &Selection) -> Vec<String> {
        contenders(selection).unwrap().iter().map(|contender| contender.identity().name).collect()
    }

    #[test]
    fn everybody_in_order() {
        let all = selection(
            r#"
            congestion = ["cubic"]
            stacks = ["elsewhere-cubic"]
            rivals = [["cubic", "bbr3"], ["patient", "elsewhere-cubic"]]
            [[profiles]]
            name = "patient"
            congestion = "newreno"
            "#,
        );
        let expected = [
            "tiderace cubic",
            "tiderace patient",
            "elsewhere-cubic",
            "tiderace cubic + tiderace bbr3",
            "tiderace patient + elsewhere-cubic",
        ];
        assert_eq!(names(&all), expected);
        assert_eq!(absent(&all), ["elsewhere-cubic"]);
        assert!(absent(&selection("congestion = [\"cubic\"]")).is_empty());
    }

    #[test]
    fn a_rival_that_there_is_not() {
        let Err(fault) = contenders(&selection("rivals = [[\"cubic\", \"bbr4\"]]")) else { panic!("it was taken") };
        assert_eq!(fault.field, "contenders.rivals.0");
        assert!(fault.message.contains("no contender `bbr4`"), "{fault:?}");
        assert!(fault.hint.unwrap().contains("did you mean `bbr"));
    }
}
