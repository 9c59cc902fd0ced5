//! The list of planted faults: xtask/mutants/*.toml, one file for each crate.

use std::{collections::BTreeMap, ops::Range, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// A fault: a text of a source file and what stands there instead.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Mutant {
    /// Short name, unique.
    pub(crate) name: String,
    /// The source file, from the root of the workspace.
    pub(crate) file: String,
    /// The text as it stands there, exactly once: an expression, or whole statements.
    pub(crate) old: String,
    /// The text planted in its place, of the same kind.
    pub(crate) new: String,
    /// Falsified figures, or what else it falsifies.
    pub(crate) falsifies: String,
    /// The check that has to catch it.
    pub(crate) caught_by: CaughtBy,
}

/// The check that has to catch a fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum CaughtBy {
    /// `selftest`: `tiderace lab selftest`.
    Selftest,
    /// `run check: SCENARIO`: what a run of this preset checks of itself.
    RunCheck(String),
    /// `test: PACKAGE::TARGET NAME`: tests of this binary whose path has this name in it.
    Test { binary: String, name: String },
}

impl TryFrom<String> for CaughtBy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "selftest" {
            return Ok(Self::Selftest);
        }
        if let Some(scenario) = text.strip_prefix("run check: ") {
            return Ok(Self::RunCheck(scenario.to_owned()));
        }
        let test = text.strip_prefix("test: ").and_then(|rest| rest.split_once(' '));
        match test {
            Some((binary, name)) if binary.contains("::") => {
                Ok(Self::Test { binary: binary.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("`{text}` is none of `selftest`, `run check: SCENARIO`, `test: PACKAGE::TARGET NAME`")),
        }
    }
}

impl core::fmt::Display for CaughtBy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Selftest => f.write_str("lab selftest"),
            Self::RunCheck(scenario) => write!(f, "run check of {scenario}"),
            Self::Test { binary, name } => write!(f, "{binary} {name}"),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// Returns whether the texts are statements; otherwise they are expressions.
    fn is_statement(&self) -> bool {
        self.old.trim_end().ends_with([';', '}'])
    }

    /// The source text with a switch: the fault when its number is chosen, the old text otherwise.
    fn switched(&self, number: usize) -> String {
        let (old, new) = (&self.old, &self.new);
        match self.is_statement() {
            true => format!("if crate::planted::on({number}) {{ {new} }} else {{ {old} }}"),
            false => format!("(if crate::planted::on({number}) {{ {new} }} else {{ {old} }})"),
        }
    }
}

/// All faults, in the order of files and within them; the number of one is its place, from 1.
pub(crate) fn read(root: &Path) -> Result<Vec<Mutant>> {
    let folder = root.join("xtask/mutants");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut all: Vec<Mutant> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let File { mutant } = toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
        all.extend(mutant);
    }
    let mut names: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("two faults have the name {}", pair[0]);
    }
    Ok(all)
}

/// True if each bracket has its partner: half a block cannot stand behind a switch.
fn closes_what_it_opens(text: &str) -> bool {
    let mut open = Vec::new();
    text.chars().all(|letter| match letter {
        '(' | '[' | '{' => {
            open.push(letter);
            true
        }
        ')' => open.pop() == Some('('),
        ']' => open.pop() == Some('['),
        '}' => open.pop() == Some('{'),
        _ => true,
    }) && open.is_empty()
}

/// Place of the old text. Anything but once is an error: the list has to follow the source.
fn place(text: &str, mutant: &Mutant) -> Result<Range<usize>> {
    let mut places = text.match_indices(&mutant.old);
    let place = places.next().map(|(at, old)| at..at + old.len());
    let count = text.matches(&mutant.old).count();
    let Some(place) = place.filter(|_| count == 1) else {
        bail!("{}: the old text stands {count} times in {}, not once:\n{}", mutant.name, mutant.file, mutant.old);
    };
    ensure!(mutant.old != mutant.new, "{}: old and new text are the same", mutant.name);
    for text in [&mutant.old, &mutant.new] {
        ensure!(closes_what_it_opens(text), "{}: no whole expression or statement: {text}", mutant.name);
    }
    // A binding would not leave the branch of the switch.
    ensure!(!mutant.old.trim_start().starts_with("let "), "{}: a `let` cannot stand behind a switch", mutant.name);
    Ok(place)
}

/// The source files with all faults planted, each behind its switch.
pub(crate) fn planted(root: &Path, mutants: &[Mutant]) -> Result<BTreeMap<String, String>> {
    let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        by_file.entry(&mutant.file).or_default().push((number, mutant));
    }
    let mut sources = BTreeMap::new();
    for (file, mutants) in by_file {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let places = mutants.into_iter().map(|(number, mutant)| Ok((place(&text, mutant)?, number, mutant)));
        let mut places = places.collect::<Result<Vec<_>>>()?;
        places.sort_by_key(|(place, ..)| place.start);
        if let Some(pair) = places.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            bail!("{} and {} overlap in {file}", pair[0].2.name, pair[1].2.name);
        }
        let mut source = text.clone();
        for (place, number, mutant) in places.into_iter().rev() {
            source.replace_range(place, &mutant.switched(number));
        }
        sources.insert(file.to_owned(), source);
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    /// Every old text is where the list says, once; no two overlap. A change of one of these places needs a change of the list.
    #[test]
    fn half_a_block_is_found() {
        assert!(closes_what_it_opens("match (a, b[0]) { _ => {} }") && closes_what_it_opens("a + b"));
        assert!(!closes_what_it_opens("match (a, b) {") && !closes_what_it_opens("a)") && !closes_what_it_opens("(a]"));
    }

    #[test]
    fn the_list_follows_the_source() {
        let mutants = read(root()).unwrap();
        assert!(mutants.len() >= 60, "{} faults", mutants.len());
        let sources = planted(root(), &mutants).unwrap_or_else(|error| panic!("{error}"));
        for (number, mutant) in (1..).zip(&mutants) {
            assert!(sources[&mutant.file].contains(&format!("planted::on({number})")), "{}", mutant.name);
        }
        let by_selftest = mutants.iter().filter(|mutant| mutant.caught_by == CaughtBy::Selftest).count();
        assert!(by_selftest >= 45, "{by_selftest} are for the self-test");
    }

    fn mutant(old: &str, new: &str) -> Mutant {
        Mutant {
            name: "m".to_owned(),
            file: "f".to_owned(),
            old: old.to_owned(),
            new: new.to_owned(),
            falsifies: String::new(),
            caught_by: CaughtBy::Selftest,
        }
    }

    #[test]
    fn a_text_that_is_gone_or_stands_twice_is_an_error() {
        assert_eq!(place("let x = a + b;", &mutant("a + b", "a")).unwrap(), 8..13);
        assert!(place("let x = a + c;", &mutant("a + b", "a")).unwrap_err().to_string().contains("0 times"));
        assert!(place("a + b; a + b;", &mutant("a + b", "a")).unwrap_err().to_string().contains("2 times"));
    }

    #[test]
    fn expressions_and_statements_are_switched() {
        assert_eq!(mutant("a + b", "a").switched(7), "(if crate::planted::on(7) { a } else { a + b })");
        assert_eq!(mutant("x += 1;", "x += 2;").switched(7), "if crate::planted::on(7) { x += 2; } else { x += 1; }");
    }

    #[test]
    fn what_catches_is_named() {
        let parse = |text: &str| CaughtBy::try_from(text.to_owned());
        assert_eq!(parse("selftest"), Ok(CaughtBy::Selftest));
        assert_eq!(parse("run check: mobile"), Ok(CaughtBy::RunCheck("mobile".to_owned())));
        let test = CaughtBy::Test { binary: "tiderace-fec::oracle".to_owned(), name: "x::y".to_owned() };
        assert_eq!(parse("test: tiderace-fec::oracle x::y"), Ok(test));
        assert!(parse("luck").is_err() && parse("test: oracle x").is_err());
    }
}
