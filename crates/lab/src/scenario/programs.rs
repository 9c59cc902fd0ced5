//! Contenders that are commands: a server and a client of any kind, seen from outside.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Fault, Scenario, Workload, check::fault, nearest};

/// A server and a client, each a command for `sh -c`, as one contender. They run in real time only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Programs {
    /// Name of the contender in tables and in `--cc`.
    pub name: String,
    /// Command of the server, which listens until it is ended. One serves all connections.
    pub server: String,
    /// Command of the client, which ends with exit code 0. One runs for each connection.
    pub client: String,
    /// Port on which the server listens, by TCP or UDP. By default 10000.
    #[serde(default = "usual_port")]
    pub port: u16,
}

const fn usual_port() -> u16 {
    Programs::PORT
}

/// Placeholders of commands, with their meaning.
pub const PLACEHOLDERS: [(&str, &str); 10] = [
    ("server", "address of the server"),
    ("client", "address of the client"),
    ("port", "port of the server"),
    ("bytes", "size of the transfer (`response-size`, or `request-size` of an upload)"),
    ("seconds", "length of the run, rounded up"),
    ("certificate", "PEM file: a certificate for the server's address, its own root"),
    ("key", "PEM file: its key"),
    ("directory", "directory of the run, removed after it; all commands may write there"),
    ("file", "name of a file of `bytes` bytes in it"),
    ("connection", "number of the client, from 0; 0 for the server"),
];

/// Placeholders that need a workload with a size.
const SIZED: [&str; 2] = ["bytes", "file"];

impl Programs {
    /// Port of a server, unless the scenario names another.
    pub const PORT: u16 = 10_000;

    /// Both commands.
    fn commands(&self) -> [(&'static str, &str); 2] {
        [("server", &self.server), ("client", &self.client)]
    }

    /// True if a command has this placeholder.
    pub fn uses(&self, placeholder: &str) -> bool {
        let marked = format!("{{{placeholder}}}");
        self.commands().iter().any(|(_, command)| command.contains(&marked))
    }

    fn check(&self, index: usize, workload: Workload) -> Result<(), Fault> {
        let place = |field: &str| format!("contenders.commands.{index}.{field}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:+".contains(c);
        if self.name.is_empty() || !self.name.chars().all(is_plain) {
            let message = format!("`{}` is no name: letters, digits and -_.:+", self.name);
            return Err(fault(&place("name"), message));
        }
        for (field, command) in self.commands() {
            if command.trim().is_empty() {
                return Err(fault(&place(field), "there is no command"));
            }
            let known = |name: &str| PLACEHOLDERS.iter().any(|(known, _)| *known == name).then(String::new);
            fill(command, known).map_err(|name| {
                let names = PLACEHOLDERS.map(|(name, _)| name);
                let meant = nearest(&name, names).map(|near| format!("did you mean `{{{near}}}`? "));
                fault(&place(field), format!("there is no placeholder `{{{name}}}`")).hint(format!(
                    "{}there are {}; `{{{{{name}}}}}` stands for the text itself",
                    meant.unwrap_or_default(),
                    names.join(", ")
                ))
            })?;
        }
        if self.port == 0 {
            return Err(fault(&place("port"), "0 is out of range: 1 to 65535"));
        }
        match workload {
            Workload::Flows => Ok(()),
            Workload::Bulk => match SIZED.into_iter().find(|name| self.uses(name)) {
                None => Ok(()),
                Some(name) => Err(fault("contenders.commands", format!("`{{{name}}}`: `bulk` has no size"))
                    .hint("`workload = \"flows\"` with `response-size` has one")),
            },
            _ => Err(fault("contenders.commands", format!("`{}` runs with `flows` or `bulk`", self.name))
                .hint("a command is one transfer: of a size (`flows`), or until the run ends (`bulk`)")),
        }
    }
}

/// Puts values in the place of `{name}`; `{{name}}` stands for `{name}` itself. Braces around anything but lower-case letters, and behind `$`
/// and `%`, belong to the command.
///
/// # Errors
/// A name without a value.
pub fn fill(command: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = command;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        filled.push_str(before);
        let word_of = |text: &'_ str| -> Option<usize> {
            let length = text.find(|c: char| !c.is_ascii_lowercase())?;
            (length > 0 && text[length..].starts_with('}')).then_some(length)
        };
        if let Some(length) = from.strip_prefix("{{").and_then(word_of)
            && from[2 + length..].starts_with("}}")
        {
            filled.push_str(&from[1..length + 3]);
            rest = &from[length + 4..];
            continue;
        }
        match word_of(&from[1..]).filter(|_| !before.ends_with(['$', '%'])) {
            Some(length) => {
                let name = &from[1..=length];
                filled.push_str(&value(name).ok_or_else(|| name.to_owned())?);
                rest = &from[length + 2..];
            }
            None => {
                filled.push('{');
                rest = &from[1..];
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

impl Scenario {
    /// Refuses commands that cannot be run as contenders.
    pub(super) fn check_programs(&self) -> Result<(), Fault> {
        let mut names = BTreeSet::new();
        for (index, programs) in self.contenders.commands.iter().enumerate() {
            programs.check(index, self.traffic.workload)?;
            let taken = self.contenders.congestion.contains(&programs.name)
                || self.contenders.stacks.contains(&programs.name)
                || programs.name.starts_with("kernel-");
            if taken || !names.insert(&programs.name) {
                let message = format!("`{}` is the name of another contender", programs.name);
                return Err(fault(&format!("contenders.commands.{index}.name"), message));
            }
        }
        if !names.is_empty() && (self.contenders.beside.is_some() || !self.contenders.rivals.is_empty()) {
            return Err(fault("contenders.commands", "commands have the path for themselves")
                .hint("leave out `rivals` and `beside`"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled() {
        let value = |name: &str| (name == "port").then(|| "7".to_owned());
        for (command, filled) in [
            ("serve {port} --at 0:{port}", "serve 7 --at 0:7"),
            ("curl -w '%{size_download} %{port}' ${HOME} {a,b} '{\"a\": 1}' {}", ""),
            ("awk '{{print}}' {port}", "awk '{print}' 7"),
            ("{", ""),
            ("é{port}é", "é7é"),
        ] {
            let filled = if filled.is_empty() { command } else { filled };
            assert_eq!(fill(command, value).as_deref(), Ok(filled));
        }
        assert_eq!(fill("x {prot}", value), Err("prot".to_owned()));
    }

    fn fault_of(traffic: &str, contenders: &str) -> Fault {
        let text = format!(
            "name = \"x\"\ntitle = \"x\"\nabout = \"x\"\n[path.down]\nrate = \"1 Mbit/s\"\nqueue = \"10 kB\"\ndelay = \"1 ms\"\n\
             [traffic]\nconnections = 1\n{traffic}\n[run]\nduration = \"1 s\"\n[contenders]\n{contenders}"
        );
        let scenario: Scenario = toml::from_str(&text).unwrap();
        scenario.check().unwrap_err()
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let flows = "workload = \"flows\"\nresponse-size = \"1 MB\"";
        for (traffic, contenders, field, said) in [
            (flows, "commands = [{ name = \"a\", server = \"s\", client = \"c {prot}\" }]", "client", "{prot}"),
            (flows, "commands = [{ name = \"a b\", server = \"s\", client = \"c\" }]", "name", "is no name"),
            (flows, "commands = [{ name = \"a\", server = \" \", client = \"c\" }]", "server", "no command"),
            (flows, "commands = [{ name = \"kernel-x\", server = \"s\", client = \"c\" }]", "name", "another"),
            (
                "workload = \"bulk\"",
                "commands = [{ name = \"a\", server = \"s\", client = \"c {bytes}\" }]",
                "",
                "no size",
            ),
            (
                "workload = \"requests\"\nresponse-size = \"1 kB\"",
                "commands = [{ name = \"a\", server = \"s\", client = \"c\" }]",
                "",
                "`flows` or `bulk`",
            ),
        ] {
            let fault = fault_of(traffic, contenders);
            assert!(fault.field.starts_with("contenders.commands") && fault.field.ends_with(field), "{fault:?}");
            assert!(fault.message.contains(said), "{fault:?}");
        }
        let twice = "commands = [{ name = \"a\", server = \"s\", client = \"c\" }, { name = \"a\", server = \"s\", client = \"c\" }]";
        assert!(fault_of(flows, twice).message.contains("another contender"));
        let near = "commands = [{ name = \"a\", server = \"s\", client = \"c {prot}\" }]";
        assert!(fault_of(flows, near).hint.unwrap().contains("did you mean `{port}`"));
    }
}
