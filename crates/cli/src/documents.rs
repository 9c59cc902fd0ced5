//! Commands of the documents: each names subcommands and options that there are, with values that can be read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{
    Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::Cli;

/// A command, and how complete it has to be.
struct Written {
    document: String,
    text: String,
    /// Command in a sentence, which may leave out arguments.
    inline: bool,
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documents(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Commands of blocks of a shell, with continued lines joined, and code in sentences that begins with the program's name.
fn commands(document: &str, text: &str) -> Vec<Written> {
    let (mut found, mut block) = (Vec::new(), None::<bool>);
    let joined = text.replace("\\\n", " ");
    for line in joined.lines() {
        let written = |text: &str, inline| Written { document: document.to_owned(), text: text.to_owned(), inline };
        if let Some(kind) = line.strip_prefix("```") {
            block = if block.is_none() { Some(kind == "sh") } else { None };
        } else if block == Some(true) {
            // In other workspaces `cargo run` runs another program.
            let own: &[&str] = if document.ends_with("/bench/README.md") { &[] } else { &["cargo run --release -- "] };
            let begins = own.iter().chain(&["tiderace "]).find(|begin| line.starts_with(**begin));
            found.extend(begins.map(|begin| written(&format!("tiderace {}", &line[begin.len()..]), false)));
        } else if block.is_none() {
            let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("tiderace "));
            found.extend(spans.map(|span| written(span, true)));
        }
    }
    found
}

/// Words as a shell reads them, up to a comment, a pipe or the next command.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (None, '|' | '&' | ';' | '>' | '<') => break,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns whether a reader has to put something else in its place: `HOST:4433`, `FINGERPRINT`, `…`.
fn is_placeholder(value: &str) -> bool {
    value.contains('…')
        || value.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
            part.len() > 1
                && part.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
                && part.starts_with(|c: char| c.is_ascii_uppercase())
        })
}

/// Fault of a command.
fn fault(written: &Written) -> Option<String> {
    let words = words(&written.text);
    let error = Cli::try_parse_from(&words).err()?;
    let tolerated = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand => written.inline,
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => match error.get(ContextKind::InvalidValue) {
            // An option at the end of code in a sentence has its value elsewhere.
            Some(ContextValue::String(value)) => is_placeholder(value) || (written.inline && value.is_empty()),
            _ => false,
        },
        _ => words.iter().any(|word| written.inline && word == "…"),
    };
    (!tolerated).then(|| format!("{}: `{}`: {error}", written.document, written.text))
}

#[test]
fn commands_of_the_documents_can_be_given() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md", "interop/README.md", "python/README.md"];
    let mut paths: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    documents(&root.join("docs"), &mut paths);
    let written: Vec<Written> = paths
        .iter()
        .flat_map(|path| commands(&path.display().to_string(), &fs::read_to_string(path).unwrap()))
        .collect();
    let blocks = written.iter().filter(|one| !one.inline).count();
    assert!(blocks > 50 && written.len() - blocks > 50, "{blocks} of {} commands stand in blocks", written.len());
    let faults: Vec<String> = written.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    let wrong =
        |text: &str, inline| fault(&Written { document: "a".to_owned(), text: text.to_owned(), inline }).is_some();
    assert!(wrong("tiderace lab play --speed 3", false), "no such option");
    assert!(wrong("tiderace lap run mobile", true), "no such command");
    assert!(wrong("tiderace lab run mobile --loss much", false), "no such value");
    assert!(wrong("tiderace lab run", false) && !wrong("tiderace lab run", true), "incomplete");
    assert!(!wrong("tiderace lab run mobile --loss '5 %' # a comment --speed", false));
    assert!(!wrong("tiderace perf client HOST:4433 --pin FINGERPRINT -i 1s | tee log", false));
}
