//! The tables in `compliance/`: one file per document, one line per requirement.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::id::{Id, Place, Section};

/// Addressee of a requirement, when it is for no end of a connection, with the reason for the exception.
#[derive(Debug, Deserialize)]
struct Addressee {
    /// Reason why nothing in this project can obey it; absent where the project is addressed.
    except: Option<String>,
}

/// A document.
#[derive(Debug, Deserialize)]
struct File {
    title: String,
    /// Section, then keyword and number.
    sections: BTreeMap<String, BTreeMap<String, Line>>,
}

/// A requirement as its line in the file says it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    print: String,
    applies: String,
    asks: String,
    except: Option<String>,
    untested: Option<String>,
}

/// A requirement.
#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) id: Id,
    /// Fingerprint of the sentence.
    pub(crate) print: String,
    /// Addressee.
    pub(crate) applies: String,
    /// Requirement, in our words.
    pub(crate) asks: String,
    /// Reason why it is not obeyed.
    pub(crate) except: Option<String>,
    /// Reason why no test shows that it is obeyed.
    pub(crate) untested: Option<String>,
}

/// A document and its requirements in their order.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) number: u32,
    pub(crate) title: String,
    pub(crate) requirements: Vec<Requirement>,
}

/// Reads all tables of a folder, in the order of their numbers.
pub(crate) fn read(folder: &Path) -> Result<Vec<Document>> {
    let text = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let addressees: BTreeMap<String, Addressee> =
        toml::from_str(&text(&folder.join("addressees.toml"))?).context("in addressees.toml")?;
    let mut documents = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(number) = name.strip_prefix("rfc").and_then(|rest| rest.strip_suffix(".toml")) else { continue };
        let number = number.parse().with_context(|| format!("{name} is not named after a document"))?;
        documents.push(document(number, &text(&path)?, &addressees).with_context(|| format!("in {name}"))?);
    }
    documents.sort_by_key(|document| document.number);
    Ok(documents)
}

fn document(number: u32, text: &str, addressees: &BTreeMap<String, Addressee>) -> Result<Document> {
    let file: File = toml::from_str(text)?;
    let mut requirements = Vec::new();
    for (section, lines) in file.sections {
        let section: Section = section.parse()?;
        for (place, line) in lines {
            let place: Place = place.parse()?;
            let id = Id { document: number, section: section.clone(), place };
            requirements.push(requirement(id, line, addressees)?);
        }
    }
    requirements.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Document { number, title: file.title, requirements })
}

fn requirement(id: Id, line: Line, addressees: &BTreeMap<String, Addressee>) -> Result<Requirement> {
    let Line { print, applies, asks, mut except, untested } = line;
    let Some(addressee) = addressees.get(&applies) else {
        bail!("{id} is for {applies:?}, which addressees.toml does not know")
    };
    if print.len() != 8 || !print.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("{id} has no fingerprint");
    }
    for (name, reason) in [("asks", Some(&asks)), ("except", except.as_ref()), ("untested", untested.as_ref())] {
        if reason.is_some_and(|reason| reason.trim().is_empty()) {
            bail!("{id}: `{name}` says nothing");
        }
    }
    if except.is_some() && untested.is_some() {
        bail!("{id} is excepted, so that there is nothing to test");
    }
    if except.is_none() {
        except.clone_from(&addressee.except);
    }
    Ok(Requirement { id, print, applies, asks, except, untested })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Document> {
        let addressees = toml::from_str("[endpoint]\n[iana]\nexcept = \"we assign nothing\"\n")?;
        document(9, &format!("title = \"T\"\n[sections.\"8.1\"]\n{line}\n"), &addressees)
    }

    #[test]
    fn a_line_is_a_requirement() {
        let document =
            read("\"MUST NOT-2\" = { print = \"0123abcd\", applies = \"endpoint\", asks = \"do\" }").unwrap();
        let requirement = &document.requirements[0];
        assert_eq!(requirement.id.to_string(), "RFC 9 §8.1 MUST NOT-2");
        assert!(requirement.except.is_none());
        let document = read("MUST-1 = { print = \"0123abcd\", applies = \"iana\", asks = \"do\" }").unwrap();
        assert_eq!(document.requirements[0].except.as_deref(), Some("we assign nothing"));
    }

    #[test]
    fn an_exception_has_a_reason_and_every_line_is_complete() {
        for line in [
            "MUST-1 = { print = \"0123abcd\", applies = \"endpoint\", asks = \"do\", except = \" \" }",
            "MUST-1 = { print = \"0123abcd\", applies = \"endpoint\", asks = \"do\", untested = \"\" }",
            "MUST-1 = { print = \"0123abcd\", applies = \"endpoint\", asks = \"\" }",
            "MUST-1 = { print = \"0123abcd\", applies = \"nobody\", asks = \"do\" }",
            "MUST-1 = { print = \"0123\", applies = \"endpoint\", asks = \"do\" }",
            "MUST-1 = { applies = \"endpoint\", asks = \"do\" }",
            "MUSTY-1 = { print = \"0123abcd\", applies = \"endpoint\", asks = \"do\" }",
            "MUST-1 = { print = \"0123abcd\", applies = \"endpoint\", asks = \"do\", exept = \"typo\" }",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
