//! Parser of scenarios. Errors name the file, the line, the field and the name that was probably meant.

use std::{ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Fault, PRESETS, Scenario, nearest};

/// A scenario that cannot be used. Prints as one line; [`ScenarioError::hint`] belongs on the next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct ScenarioError {
    /// The file, the preset, or the command line.
    pub origin: String,
    /// Line in the file, from 1.
    pub line: Option<usize>,
    /// The field, as in `path.down.queue`.
    pub field: Option<String>,
    /// Fault.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
}

impl ScenarioError {
    /// `file:line: field: `, as far as known.
    fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let field = self.field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
        format!("{}{line}: {field}", self.origin)
    }

    /// An error about the whole of `origin`.
    fn whole(origin: &str, message: String, hint: Option<String>) -> Self {
        Self { origin: origin.to_owned(), line: None, field: None, message, hint }
    }
}

/// The preset with this name, or the scenario in this file.
///
/// A name with `/`, or one that ends in `.toml`, is a file.
///
/// # Errors
/// When there is no such preset or file, or when it is no scenario.
pub fn load(name_or_file: &str) -> Result<Scenario, ScenarioError> {
    let is_file = name_or_file.contains(['/', '\\']) || name_or_file.ends_with(".toml");
    if !is_file {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name_or_file) {
            return parse(preset.text, &format!("preset {}", preset.name));
        }
        let names = PRESETS.iter().map(|preset| preset.name);
        let hint = match nearest(name_or_file, names.clone()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("there are {}; a file is given by its path", names.collect::<Vec<_>>().join(", ")),
        };
        return Err(ScenarioError::whole(name_or_file, "there is no preset with this name".to_owned(), Some(hint)));
    }
    let text = std::fs::read_to_string(Path::new(name_or_file)).map_err(|error| {
        let hint = "`tiderace lab list` prints the presets; a file is given by its path".to_owned();
        ScenarioError::whole(name_or_file, format!("cannot read the file: {error}"), Some(hint))
    })?;
    parse_in(&text, name_or_file, Path::new(name_or_file).parent().unwrap_or_else(|| Path::new(".")))
}

/// Reads a scenario from the text of `origin` and checks it.
///
/// # Errors
/// When the text is not TOML, has an unknown field, or a value that makes no sense.
pub fn parse(text: &str, origin: &str) -> Result<Scenario, ScenarioError> {
    parse_in(text, origin, Path::new("."))
}

/// As [`parse`], with the traces that the scenario names read from `directory`.
fn parse_in(text: &str, origin: &str, directory: &Path) -> Result<Scenario, ScenarioError> {
    let mut scenario: Scenario = toml::from_str(text).map_err(|error| explain(text, origin, &error))?;
    let read = super::traces::read(&mut scenario, directory);
    let checked = read.and_then(|()| scenario.check()).and_then(|()| scenario.points().map(drop));
    checked.map_err(|Fault { field, message, hint }| {
        let line = position(text, &field).map(|start| line_of(text, start));
        ScenarioError { origin: origin.to_owned(), line, field: Some(field), message, hint }
    })?;
    Ok(scenario)
}

/// Names the place in the text that cannot be read, and the fault.
fn explain(text: &str, origin: &str, error: &toml::de::Error) -> ScenarioError {
    let message = error.message().trim().replace('\n', ", ");
    let span = error.span();
    let field = span.as_ref().and_then(|span| field_at(text, span)).filter(|field| !field.is_empty());
    let hint = suggestion(&message);
    let line = span.map(|span| line_of(text, span.start));
    ScenarioError { origin: origin.to_owned(), line, field, message, hint }
}

/// A field that another part of the program looked at: where it stands in the text of the file, when the origin is one.
pub(super) fn suggestion_of(message: &str) -> Option<String> {
    suggestion(message)
}

/// The name that was probably meant, from serde's "unknown field `x`, expected one of `a`, `b`".
fn suggestion(message: &str) -> Option<String> {
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let written = quoted.next()?;
    nearest(written, quoted).map(|name| format!("did you mean `{name}`?"))
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

/// The innermost field whose key or value encloses `span`.
fn field_at(text: &str, span: &Range<usize>) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    let mut found = Vec::new();
    let mut table = root.get_ref();
    // A table's own span may be only its header, so a table is entered when anything inside it matches.
    while let Some((key, value)) = table.iter().find(|(key, value)| encloses(key, value, span)) {
        found.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    Some(found.join("."))
}

fn encloses<K>(key: &Spanned<K>, value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    let inside = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    inside(key.span())
        || inside(value.span())
        || matches!(value.get_ref(), DeValue::Table(inner) if inner.iter().any(|(k, v)| encloses(k, v, span)))
}

/// Finds the field, or else the closest table around it, in the text.
fn position(text: &str, field: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut start = None;
    let mut rest = field;
    while !rest.is_empty() {
        // A key may have dots in it, as those of `factors` have.
        let whole = table.iter().find(|(key, _)| key.get_ref().as_ref() == rest);
        let (name, behind) = if whole.is_some() { (rest, "") } else { rest.split_once('.').unwrap_or((rest, "")) };
        rest = behind;
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref().as_ref() == name) else { break };
        start = Some(key.span().start);
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"name = "test"
title = "A test"
about = "For tests."

[path.down]
rate = "20 Mbit/s"
queue = "125 kB"
delay = "25 ms"

[traffic]
workload = "bulk"
connections = 2

[run]
duration = "1 s"
"#;

    fn error(from: &str, to: &str) -> ScenarioError {
        assert!(GOOD.contains(from), "{from}");
        parse(&GOOD.replace(from, to), "test.toml").unwrap_err()
    }

    #[test]
    fn reads_with_defaults() {
        let scenario = parse(GOOD, "test.toml").unwrap();
        assert_eq!((scenario.run.seeds, scenario.run.seed, scenario.traffic.streams), (10, 1, 1));
        assert_eq!(scenario.path.up().delay, units::Duration::from_millis(25));
        assert_eq!(scenario.contenders.congestion, ["newreno", "cubic"]);
    }

    #[test]
    fn errors_name_line_field_and_the_nearest_name() {
        let unknown = error("queue = ", "qeue = ");
        assert_eq!((unknown.line, unknown.field.as_deref()), (Some(7), Some("path.down.qeue")));
        assert_eq!(unknown.hint.as_deref(), Some("did you mean `queue`?"));
        assert!(unknown.to_string().starts_with("test.toml:7: path.down.qeue: unknown field `qeue`"), "{unknown}");

        let variant = error("\"bulk\"", "\"blk\"");
        assert_eq!((variant.line, variant.field.as_deref()), (Some(11), Some("traffic.workload")));
        assert_eq!(variant.hint.as_deref(), Some("did you mean `bulk`?"));

        let unit = error("20 Mbit/s", "20 Mbyte");
        assert_eq!((unit.line, unit.field.as_deref()), (Some(6), Some("path.down.rate")));
        assert!(unit.message.contains("20 Mbit/s"), "an example is given: {unit}");

        let missing = error("connections = 2\n", "");
        assert_eq!(missing.field.as_deref(), Some("traffic"));
        assert!(missing.message.contains("connections"), "{missing}");
    }

    #[test]
    fn ranges_are_checked_where_they_stand() {
        for (from, to, line, field) in [
            ("connections = 2", "connections = 0", 12, "traffic.connections"),
            ("connections = 2", "connections = 2\nresponse-size = \"1 kB\"", 13, "traffic.response-size"),
            ("queue = \"125 kB\"", "queue = \"1 kB\"", 7, "path.down.queue"),
            ("queue = \"125 kB\"\n", "", 5, "path.down.queue"),
            ("25 ms", "25 s", 8, "path.down.delay"),
            ("\"1 s\"", "\"2 h\"", 15, "run.duration"),
            ("name = \"test\"", "name = \"../x\"", 1, "name"),
        ] {
            let error = error(from, to);
            assert_eq!((error.line, error.field.as_deref()), (Some(line), Some(field)), "{error}");
        }
    }

    #[test]
    fn unknown_presets_and_files() {
        let error = load("mobil").unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("did you mean `mobile`?"));
        let error = load("does/not/exist.toml").unwrap_err();
        assert!(error.to_string().starts_with("does/not/exist.toml: cannot read the file"), "{error}");
        assert!(parse("name = ", "x.toml").is_err());
        assert!(parse("", "x.toml").is_err());
    }
}
