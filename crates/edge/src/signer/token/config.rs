//! Configuration of a token: its module, its PIN, and the names of its keys.

use std::{
    fmt, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::TokenError;
use crate::config::{
    read::{Fault, Step::Key},
    section::section,
};

section! {
    /// `[pkcs11]`: a device with private keys. Identities with `key-label` or `key-id` have their keys there.
    pub struct Pkcs11Token {
        /// Library of the device's vendor. Empty: no device.
        module: String = String::new(),
        /// Label of the token.
        token: String = String::new(),
        /// Slot of the token, in place of `token`.
        slot: Option<u32> = None,
        /// File with the user's PIN, which others than its owner and its group may not read.
        pin_file: String = String::new(),
        /// Environment variable with the user's PIN, in place of `pin-file`.
        pin_variable: String = String::new(),
        /// Sessions with the token. As many signatures are under way at a time; others wait for 5 s at most.
        sessions: usize = 8,
    }
}

/// Most sessions with a token: each may hold a thread.
const MAX_SESSIONS: usize = 256;

/// Name of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::signer) enum TokenName {
    Label(String),
    Slot(u32),
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => write!(f, "with the label `{label}`"),
            Self::Slot(slot) => write!(f, "in slot {slot}"),
        }
    }
}

/// PIN, which no text shows.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::signer) struct Pin(pub(super) String);

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin(..)")
    }
}

/// Token as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::signer) struct TokenConfig {
    pub(super) module: PathBuf,
    pub(super) token: TokenName,
    pub(super) pin: Option<Pin>,
    pub(super) sessions: usize,
}

/// Name of a private key in a token: label, ID, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::signer) struct KeyName {
    pub(super) label: Option<String>,
    pub(super) id: Option<Vec<u8>>,
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "with the label `{label}`")?;
        }
        if let Some(id) = &self.id {
            write!(f, "{}with the ID ", if self.label.is_some() { " and " } else { "" })?;
            id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl KeyName {
    /// Name from its settings; `None` when both are empty.
    ///
    /// # Errors
    /// When the ID is not in hexadecimal digits.
    pub(in crate::signer) fn parse(label: &str, id: &str) -> Result<Option<Self>, String> {
        let digits = id.as_bytes().chunks(2).map(|pair| {
            let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2 && !text.starts_with('+'))?;
            u8::from_str_radix(text, 16).ok()
        });
        let bytes: Vec<u8> =
            digits.collect::<Option<_>>().ok_or("expected bytes in hexadecimal digits, as \"01a0\"")?;
        let name = Self {
            label: Some(label.to_owned()).filter(|label| !label.is_empty()),
            id: Some(bytes).filter(|id| !id.is_empty()),
        };
        Ok(Some(name).filter(|name| *name != Self::default()))
    }
}

impl Pkcs11Token {
    /// Checks the section and reads the PIN; `None` for one without a module.
    pub(in crate::signer) fn resolve(&self, directory: &Path) -> Result<Option<TokenConfig>, Fault> {
        let at = |key| [Key("pkcs11"), Key(key)];
        if self.module.is_empty() {
            return if *self == Self::default() {
                Ok(None)
            } else {
                Err(Fault::new(&[Key("pkcs11")], "expected `module`").hint("the library of the device's vendor"))
            };
        }
        let token = match (self.token.as_str(), self.slot) {
            ("", Some(slot)) => TokenName::Slot(slot),
            ("", None) => {
                return Err(Fault::new(&[Key("pkcs11")], "expected `token`, the label of the token, or `slot`"));
            }
            (label, None) => TokenName::Label(label.to_owned()),
            (_, Some(_)) => return Err(Fault::new(&at("slot"), "expected either `token` or `slot`, found both")),
        };
        if self.sessions == 0 || self.sessions > MAX_SESSIONS {
            return Err(Fault::new(&at("sessions"), format!("expected 1 to {MAX_SESSIONS}")));
        }
        let pin = match (self.pin_file.as_str(), self.pin_variable.as_str()) {
            ("", "") => None,
            (file, "") => Some(pin_of_file(&directory.join(file)).map_err(|error| fault(&at("pin-file"), &error))?),
            ("", variable) => {
                let pin = std::env::var(variable).map_err(|_| TokenError::PinVariable(variable.to_owned()));
                Some(Pin(pin.map_err(|error| fault(&at("pin-variable"), &error))?))
            }
            _ => {
                let message = "expected either `pin-file` or `pin-variable`, found both";
                return Err(Fault::new(&at("pin-variable"), message));
            }
        };
        Ok(Some(TokenConfig { module: directory.join(&self.module), token, pin, sessions: self.sessions }))
    }
}

fn fault(at: &[crate::config::read::Step], error: &TokenError) -> Fault {
    Fault::new(at, error.to_string()).hint(error.hint())
}

/// Reads a PIN; the end of its line does not belong to it.
fn pin_of_file(path: &Path) -> Result<Pin, TokenError> {
    let unreadable = |source: io::Error| TokenError::PinUnreadable { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(unreadable)?.permissions().mode() & 0o007 != 0 {
        return Err(TokenError::PinExposed(path.to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    Ok(Pin(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_by_label_and_id() {
        let name = |label: &str, id: &str| KeyName::parse(label, id).map(|name| name.map(|name| name.to_string()));
        assert_eq!(name("", ""), Ok(None));
        assert_eq!(name("site", "").unwrap().unwrap(), "with the label `site`");
        assert_eq!(name("", "01A0").unwrap().unwrap(), "with the ID 01a0");
        assert_eq!(name("site", "7f").unwrap().unwrap(), "with the label `site` and with the ID 7f");
        for wrong in ["1", "0x", "01 2", "+1", "é"] {
            assert!(name("site", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pin_is_read_from_a_file_of_its_owner_and_shown_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pin");
        std::fs::write(&file, "12 34\n").unwrap();
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(matches!(pin_of_file(&file), Err(TokenError::PinExposed(_))));
        mode(0o640);
        let pin = pin_of_file(&file).unwrap();
        assert_eq!((pin.0.as_str(), format!("{pin:?}").as_str()), ("12 34", "Pin(..)"));
        assert!(matches!(pin_of_file(&folder.path().join("no")), Err(TokenError::PinUnreadable { .. })));
    }

    #[test]
    fn a_section_names_one_token_and_one_pin() {
        let good = Pkcs11Token { module: "a.so".to_owned(), token: "site".to_owned(), ..Pkcs11Token::default() };
        let folder = Path::new("/etc/tiderace");
        let resolved = good.resolve(folder).unwrap().unwrap();
        assert_eq!(resolved.module, folder.join("a.so"));
        assert_eq!(Pkcs11Token::default().resolve(folder).unwrap(), None);
        for wrong in [
            Pkcs11Token { module: String::new(), ..good.clone() },
            Pkcs11Token { token: String::new(), ..good.clone() },
            Pkcs11Token { slot: Some(1), ..good.clone() },
            Pkcs11Token { sessions: 0, ..good.clone() },
            Pkcs11Token { sessions: MAX_SESSIONS + 1, ..good.clone() },
            Pkcs11Token { pin_variable: "TIDERACE_NO_SUCH_VARIABLE".to_owned(), ..good.clone() },
            Pkcs11Token { pin_file: "a".to_owned(), pin_variable: "B".to_owned(), ..good },
        ] {
            assert!(wrong.resolve(folder).is_err(), "{wrong:?}");
        }
    }
}
