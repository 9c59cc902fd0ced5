//! Parser of the configuration. Errors name the file, the line, the expected value and advice.

use std::{error::Error, fmt, io, ops::Range, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Config, check};
use crate::{
    access::TokensError, certificate::CertificateError, connection_id_key::KeyFileError, keys::KeysError,
    password_file::PasswordsError, trust::RootsError,
};

/// Advice where there is none that is closer.
const REFERENCE: &str = "`tiderace edge reference` prints every setting with its meaning";

/// A configuration that cannot be used. Prints as one line; [`ConfigError::hint`] belongs on the next.
///
/// ```
/// use tiderace_edge::{ConfigCause, config};
///
/// let error = config::load("/nowhere/edge.toml".as_ref()).unwrap_err();
/// assert!(matches!(error.cause, ConfigCause::Unreadable(_)));
/// let error = config::parse("lissen = \"[::]:443\"", "edge.toml").unwrap_err();
/// assert!(matches!(error.cause, ConfigCause::Syntax));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// Line in the file, from 1.
    pub line: Option<u32>,
    /// The field, as in `route[2].to`; routes count from 1.
    pub field: Option<String>,
    /// Fault, and the expected value.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
    /// Kind of the fault, with the error that led to it.
    pub cause: ConfigCause,
}

/// Cause for which a configuration cannot be used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConfigCause {
    /// Configuration that cannot be read.
    Unreadable(Arc<io::Error>),
    /// Text that is no TOML, unknown field, or value of another type.
    Syntax,
    /// Value that is not possible, by itself or beside others; field that is missing.
    Value,
    /// Unusable certificate or key.
    Certificate(Arc<CertificateError>),
    /// Unusable ring of keys.
    Keys(Arc<KeysError>),
    /// Unusable root certificates.
    Roots(Arc<RootsError>),
    /// Unusable file of a proxy's tokens.
    Tokens(Arc<TokensError>),
    /// Unusable file of passwords.
    Passwords(Arc<PasswordsError>),
    /// Unusable key of connection IDs.
    ConnectionIdKey(Arc<KeyFileError>),
    /// Address that cannot be served.
    Address(io::ErrorKind),
    /// Access log or admin socket that cannot be opened.
    Output(io::ErrorKind),
    /// No directory where files are to be served from.
    NoDirectory,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place(), self.message)
    }
}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            ConfigCause::Unreadable(error) => Some(&**error),
            ConfigCause::Certificate(error) => Some(&**error),
            ConfigCause::Keys(error) => Some(&**error),
            ConfigCause::Roots(error) => Some(&**error),
            ConfigCause::Tokens(error) => Some(&**error),
            ConfigCause::Passwords(error) => Some(&**error),
            ConfigCause::ConnectionIdKey(error) => Some(&**error),
            ConfigCause::Syntax
            | ConfigCause::Value
            | ConfigCause::Address(_)
            | ConfigCause::Output(_)
            | ConfigCause::NoDirectory => None,
        }
    }
}

impl ConfigError {
    fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let field = self.field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
        format!("{}{line}: {field}", self.file)
    }
}

/// Fault of a field, before its line is known. Its path has the numbers of tables in lists, from 0.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) path: Vec<Step>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) cause: ConfigCause,
}

/// A step of the path to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(&'static str),
    Number(usize),
}

impl Fault {
    pub(crate) fn new(path: &[Step], message: impl Into<String>) -> Self {
        Self { path: path.to_vec(), message: message.into(), hint: None, cause: ConfigCause::Value }
    }

    /// Fault at a field, with the text of `cause`.
    pub(crate) fn of(path: &[Step], message: impl fmt::Display, cause: ConfigCause) -> Self {
        Self { cause, ..Self::new(path, message.to_string()) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A configuration with its text.
pub(crate) struct ResolvedConfig {
    pub(crate) config: Config,
    pub(crate) text: ConfigText,
}

/// Text of a configuration, which has the places of faults.
pub(crate) struct ConfigText {
    text: String,
    name: String,
}

impl ConfigText {
    pub(crate) fn locate(&self, fault: Fault) -> ConfigError {
        locate(&self.text, &self.name, fault)
    }
}

/// Reads and checks a file. Paths in it are relative to its directory.
///
/// # Errors
/// When it cannot be read, or is not valid.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    load_text(file).map(|read| read.config)
}

/// As [`load`], with the text.
pub(crate) fn load_text(file: &Path) -> Result<ResolvedConfig, ConfigError> {
    let (name, text) = read_text(file, "give the configuration's path with --config")?;
    let mut config = parse(&text, &name)?;
    let directory = file.parent().unwrap_or_else(|| Path::new("."));
    config.resolve(directory);
    config.check_files().map_err(|fault| locate(&text, &name, fault))?;
    Ok(ResolvedConfig { config, text: ConfigText { text, name } })
}

/// Name and text of a file; `hint` is for one that cannot be read.
pub(crate) fn read_text(file: &Path, hint: &str) -> Result<(String, String), ConfigError> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
        file: name.clone(),
        line: None,
        field: None,
        message: format!("cannot read the file: {error}"),
        hint: Some(hint.to_owned()),
        cause: ConfigCause::Unreadable(Arc::new(error)),
    })?;
    Ok((name, text))
}

/// Reads a configuration from `text` and checks everything that needs no file.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
    let config: Config = toml::from_str(text).map_err(|error| explain(text, file, &error))?;
    check::check(&config).map_err(|fault| locate(text, file, fault))?;
    Ok(config)
}

pub(crate) fn locate(text: &str, file: &str, fault: Fault) -> ConfigError {
    let line = position(text, &fault.path).map(|start| line_of(text, start));
    ConfigError {
        file: file.to_owned(),
        line,
        field: Some(display(&fault.path)),
        message: fault.message,
        hint: fault.hint.or_else(|| Some(REFERENCE.to_owned())),
        cause: fault.cause,
    }
}

fn display(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            Step::Number(number) => text.push_str(&format!("[{}]", number + 1)),
        }
    }
    text
}

/// Names the place in the text that cannot be read, and the fault.
pub(crate) fn explain(text: &str, file: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message().trim().replace('\n', ", ");
    let line = error.span().map(|span| line_of(text, span.start));
    let field = error.span().and_then(|span| key_at(text, &span));
    let hint = suggestion(&message).or_else(|| Some(REFERENCE.to_owned()));
    ConfigError { file: file.to_owned(), line, field, message, hint, cause: ConfigCause::Syntax }
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

/// The candidate closest to `name`, if one is close enough to be a slip of the fingers.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = candidates.into_iter().map(|candidate| (distance(name, candidate), candidate)).min()?;
    (near.0 <= (near.1.len().max(name.len()) / 3).max(1)).then_some(near.1)
}

/// Letters to insert, remove or replace until `a` becomes `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn line_of(text: &str, offset: usize) -> u32 {
    let before = text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
    u32::try_from(before + 1).unwrap_or(u32::MAX)
}

/// The name of the key at whose place, or in whose value, `span` begins.
fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    fn search(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
        table.iter().find_map(|(key, value)| {
            let here = |range: Range<usize>| range.contains(&span.start);
            let name = key.get_ref().to_string();
            if here(key.span()) {
                return Some(name);
            }
            let inner = match value.get_ref() {
                DeValue::Table(inner) => search(inner, span),
                DeValue::Array(list) => list.iter().find_map(|item| match item.get_ref() {
                    DeValue::Table(inner) => search(inner, span),
                    _ => None,
                }),
                _ => None,
            };
            match inner {
                Some(inner) => Some(format!("{name}.{inner}")),
                None => here(value.span()).then_some(name),
            }
        })
    }
    search(DeTable::parse(text).ok()?.get_ref(), span)
}

/// Finds the field, or else the closest thing around it, in the text.
fn position(text: &str, path: &[Step]) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut start = None;
    let mut table = root.get_ref();
    let mut list: Option<&[Spanned<DeValue<'_>>]> = None;
    for step in path {
        let value = match step {
            Step::Key(name) => {
                let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref().as_ref() == *name) else { break };
                start = Some(key.span().start);
                value
            }
            Step::Number(number) => {
                let Some(value) = list.and_then(|list| list.get(*number)) else { break };
                start = Some(value.span().start);
                value
            }
        };
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            DeValue::Array(inner) => list = Some(inner),
            _ => {}
        }
    }
    start
}
