//! Errors of tokens and their keys.

use std::{io, path::PathBuf};

use cryptoki::error::{Error, RvError};
use rustls::SignatureScheme;

/// Token or key in it that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Library that cannot be loaded, or is no module.
    #[error("cannot load the PKCS #11 module {}: {source}", path.display())]
    Module {
        /// The library.
        path: PathBuf,
        /// Error of the loader, or of the module.
        source: Error,
    },
    /// Identity with a key in a device that is not configured.
    #[error("the key {0} is in a device, and there is no [pkcs11]")]
    NoDevice(String),
    /// Token that the module does not have.
    #[error("the PKCS #11 module has no token {name}; it has: {found}")]
    NoToken {
        /// Name of the token.
        name: String,
        /// Labels and slots of the tokens that it has.
        found: String,
    },
    /// File of a PIN that the system does not let be read.
    #[error("cannot read the PIN in {}: {source}", path.display())]
    PinUnreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// File of a PIN that everybody may read.
    #[error("others may read the PIN in {}", .0.display())]
    PinExposed(PathBuf),
    /// Environment variable that is not set.
    #[error("the environment variable `{0}`, which should have the PIN, is not set")]
    PinVariable(String),
    /// Token that asks for a PIN, without one in the configuration.
    #[error("the token {0} asks for a PIN")]
    NoPin(String),
    /// PIN that the token does not accept. It is not tried again.
    #[error("the token {token} does not accept the PIN: {why:?}")]
    WrongPin {
        /// Name of the token.
        token: String,
        /// Code of the token.
        why: RvError,
    },
    /// Token with room for fewer sessions.
    #[error("the token {token} has room for {room} sessions")]
    Sessions {
        /// Name of the token.
        token: String,
        /// Sessions that it has opened.
        room: usize,
    },
    /// Key that the token does not have.
    #[error("the token {token} has no private key {key}")]
    NoKey {
        /// Name of the token.
        token: String,
        /// Name of the key.
        key: String,
    },
    /// Name that several keys have.
    #[error("the token {token} has several private keys {key}")]
    Ambiguous {
        /// Name of the token.
        token: String,
        /// Name of the key.
        key: String,
    },
    /// Key whose signatures the certificate does not verify.
    #[error("the private key {key} does not belong to the certificate in {}", certificate.display())]
    Mismatch {
        /// Name of the key.
        key: String,
        /// File of the certificate.
        certificate: PathBuf,
    },
    /// Key that does not sign in a way that gateways ask for.
    #[error("the private key {key} does not sign with {scheme:?}: {}", describe(source))]
    Scheme {
        /// Name of the key.
        key: String,
        /// Scheme of signatures.
        scheme: SignatureScheme,
        /// Error of the token.
        source: Error,
    },
    /// Error of the token at work.
    #[error("the token {token} fails: {}", describe(source))]
    Failed {
        /// Name of the token.
        token: String,
        /// Error of the token.
        source: Error,
    },
    /// Token that failed a moment ago, and is not asked again yet.
    #[error("the token has failed, and is asked again in a moment")]
    Resting,
    /// All sessions are in use for too long.
    #[error("all sessions with the token are in use")]
    Busy,
}

/// Short text of an error: the code, and the function of PKCS #11. The library's own texts are paragraphs of the standard.
fn describe(error: &Error) -> String {
    match error {
        Error::Pkcs11(code, function) => format!("{code:?} ({function:?})"),
        other => other.to_string(),
    }
}

impl TokenError {
    /// Advice for the operator.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Module { .. } if cfg!(target_feature = "crt-static") => {
                "this program is linked statically and loads no libraries; use one for glibc (docs/signer.md)"
            }
            Self::Module { .. } => "`module` is the library of the device's vendor, for this processor",
            Self::NoDevice(_) => "[pkcs11]\n      module = \"/usr/lib/softhsm/libsofthsm2.so\"\n      token = \"site\"",
            Self::NoToken { .. } => {
                "is the device connected, and may this user and this service use it? SoftHSM: SOFTHSM2_CONF"
            }
            Self::PinUnreadable { .. } => "paths are relative to the configuration's directory",
            Self::PinExposed(_) => "chmod 640, or 600",
            Self::PinVariable(_) => "`pin-file` is better: the environment is inherited",
            Self::NoPin(_) => "`pin-file` in [pkcs11]",
            Self::WrongPin { .. } => "most tokens lock after a few wrong PINs: correct it before the next start",
            Self::Sessions { .. } => "`sessions` in [pkcs11]",
            Self::NoKey { .. } => "`pkcs11-tool --list-objects --login` shows labels and IDs of keys",
            Self::Ambiguous { .. } => "give `key-id` too",
            Self::Mismatch { .. } => "the certificate has to be for the public half of this key",
            Self::Scheme { .. } => {
                "the key has to be for signatures (CKA_SIGN), and the device has to know the mechanism"
            }
            Self::Failed { .. } | Self::Resting => "is the device connected, and does it work?",
            Self::Busy => "`sessions` in [pkcs11], or a faster device",
        }
    }

    /// Returns whether a new session may help.
    pub(super) fn is_of_session(&self) -> bool {
        use RvError::{
            CryptokiNotInitialized, DeviceError, DeviceRemoved, FunctionFailed, GeneralError, KeyHandleInvalid,
            ObjectHandleInvalid, OperationActive, SessionClosed, SessionHandleInvalid, SlotIdInvalid, TokenNotPresent,
            UserNotLoggedIn,
        };
        match self {
            Self::Failed { source: Error::Pkcs11(code, _), .. } => matches!(
                code,
                CryptokiNotInitialized
                    | DeviceError
                    | DeviceRemoved
                    | FunctionFailed
                    | GeneralError
                    | KeyHandleInvalid
                    | ObjectHandleInvalid
                    | OperationActive
                    | SessionClosed
                    | SessionHandleInvalid
                    | SlotIdInvalid
                    | TokenNotPresent
                    | UserNotLoggedIn
            ),
            // Keys that need a login are not seen without one.
            Self::NoKey { .. } => true,
            _ => false,
        }
    }
}
