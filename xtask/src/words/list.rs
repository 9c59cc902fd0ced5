//! `xtask/words.toml`: words, ceilings, exceptions.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

pub(super) const PATH: &str = "xtask/words.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct List {
    pub(super) doc_comments: DocComments,
    #[serde(default)]
    pub(super) ceiling: Vec<Ceiling>,
    #[serde(default)]
    pub(super) term: Vec<Term>,
    #[serde(default)]
    pub(super) allowed: Vec<Allowed>,
}

/// Rule for the first word of a doc comment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DocComments {
    /// Words in lower case.
    pub(super) starts: Vec<String>,
    pub(super) share_percent_max: f64,
}

/// Counts that a crate may have, until its wording is done.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Ceiling {
    #[serde(rename = "crate")]
    pub(super) name: String,
    pub(super) starts: usize,
    pub(super) terms: usize,
}

/// Own metaphor, and the terms that replace it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Term {
    pub(super) word: String,
    pub(super) place: Place,
    pub(super) instead: String,
}

/// Places in which a term counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    /// Words of prose and parts of names, in every file, in any case; with the plural.
    Anywhere,
    /// Whole names in Rust code, outside comments, in this case.
    Names,
}

/// Exception: a term in its ordinary sense.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Allowed {
    pub(super) word: String,
    /// Beginning of the path of a file.
    pub(super) path: String,
    pub(super) why: String,
}

impl List {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let list: Self = toml::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
        for allowed in &list.allowed {
            ensure!(
                list.term.iter().any(|term| term.word == allowed.word),
                "{}: {:?} is allowed in {} but is no listed term",
                path.display(),
                allowed.word,
                allowed.path
            );
            ensure!(!allowed.why.is_empty(), "{}: no reason for {:?}", path.display(), allowed.word);
        }
        Ok(list)
    }
}
