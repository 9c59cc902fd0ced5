//! Sessions with a token, logged in.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cryptoki::{
    context::{Function, Pkcs11},
    error::{Error, RvError},
    object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle},
    session::{Session, UserType},
    slot::Slot,
    types::AuthPin,
};
use tokio::sync::Semaphore;

use super::{
    TokenError,
    config::{KeyName, TokenConfig, TokenName},
    mechanism::Operation,
    module::Module,
};

/// Time after a failed login in which the token is left alone.
const REST: Duration = Duration::from_secs(1);

/// Session with the keys that it has found. Handles of keys are not used in other sessions.
struct OpenSession {
    session: Session,
    keys: HashMap<KeyName, ObjectHandle>,
}

struct State {
    /// Number of the login. Sessions of an earlier one are not used again.
    login: u64,
    slot: Option<Slot>,
    idle: Vec<OpenSession>,
    /// Time until which nothing is asked.
    rests_until: Option<Instant>,
}

/// Logins of a token, counted.
#[derive(Debug, Default)]
pub(in crate::signer) struct Logins {
    pub(in crate::signer) succeeded: AtomicU64,
    pub(in crate::signer) failed: AtomicU64,
}

/// Token of a module. Calls block, and as many as there are sessions may be under way.
pub(in crate::signer) struct Token {
    config: TokenConfig,
    module: Arc<Module>,
    pub(super) permits: Arc<Semaphore>,
    state: Mutex<State>,
    /// Held by the thread that logs in: the others wait for it. Code with which the PIN was not accepted: it is not tried again, because
    /// tokens lock after a few.
    refused_pin: Mutex<Option<RvError>>,
    logins: Arc<Logins>,
    /// The last signature failed, as the log has it.
    is_failing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Token {
    /// Opens all sessions with a token, and logs in.
    ///
    /// # Errors
    /// When the module or the token is not there, does not accept the PIN, or has no room for the sessions.
    pub(in crate::signer) fn open(config: TokenConfig, logins: Arc<Logins>) -> Result<Self, TokenError> {
        let token = Self {
            module: Module::load(&config.module)?,
            permits: Arc::new(Semaphore::new(config.sessions)),
            state: Mutex::new(State { login: 0, slot: None, idle: Vec::new(), rests_until: None }),
            refused_pin: Mutex::new(None),
            logins,
            is_failing: AtomicBool::new(false),
            config,
        };
        token.log_in(0)?;
        Ok(token)
    }

    /// The same token, for a new configuration that has not changed it. A PIN that was refused is tried once more.
    pub(in crate::signer) fn is_of(&self, config: &TokenConfig) -> bool {
        let is_same = self.config == *config;
        if is_same {
            *lock(&self.refused_pin) = None;
        }
        is_same
    }

    /// Name for messages.
    pub(super) fn name(&self) -> String {
        self.config.token.to_string()
    }

    /// Signs. Logs in anew, once, when the token has lost its sessions.
    ///
    /// # Errors
    /// When the token does not sign.
    pub(super) fn sign(&self, key: &KeyName, operation: &Operation) -> Result<Vec<u8>, TokenError> {
        let login = {
            let state = lock(&self.state);
            if state.rests_until.is_some_and(|until| Instant::now() < until) {
                return Err(TokenError::Resting);
            }
            state.login
        };
        match self.sign_once(key, operation) {
            Err(error) if error.is_of_session() => {
                tracing::debug!("{error}: a new login");
                self.log_in(login)?;
                self.sign_once(key, operation)
            }
            outcome => outcome,
        }
    }

    /// Writes the log when signatures begin to fail, and when they do not any more.
    pub(super) fn note(&self, outcome: Result<(), &TokenError>) {
        let was_failing = self.is_failing.swap(outcome.is_err(), Ordering::Relaxed);
        match outcome {
            Ok(()) if was_failing => tracing::info!("the token {} signs again", self.name()),
            Err(error) if !was_failing => tracing::warn!("no signature: {error}; hint: {}", error.hint()),
            _ => {}
        }
    }

    fn sign_once(&self, key: &KeyName, operation: &Operation) -> Result<Vec<u8>, TokenError> {
        let (library, _call) = self.module.call();
        let (login, slot, idle) = {
            let mut state = lock(&self.state);
            (state.login, state.slot, state.idle.pop())
        };
        let mut open = match (idle, slot) {
            (Some(open), _) => open,
            (None, Some(slot)) => self.open_session(library, slot)?,
            (None, None) => return Err(TokenError::Resting),
        };
        let handle = match open.keys.get(key) {
            Some(handle) => *handle,
            None => {
                let handle = self.find(&open.session, key, operation.key_type())?;
                open.keys.insert(key.clone(), handle);
                handle
            }
        };
        // After an error the session ends: an operation may still be open in it.
        let signature = open.session.sign(&operation.mechanism(), handle, &operation.data);
        let signature = signature.map_err(|source| self.failed(source))?;
        let mut state = lock(&self.state);
        if state.login == login {
            state.idle.push(open);
        }
        Ok(operation.signature(signature))
    }

    fn failed(&self, source: Error) -> TokenError {
        TokenError::Failed { token: self.name(), source }
    }

    fn find(&self, session: &Session, key: &KeyName, wanted: KeyType) -> Result<ObjectHandle, TokenError> {
        let mut template = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
        template.extend(key.label.as_ref().map(|label| Attribute::Label(label.clone().into_bytes())));
        template.extend(key.id.as_ref().map(|id| Attribute::Id(id.clone())));
        let names = || (self.name(), key.to_string());
        match session.find_objects(&template).map_err(|source| self.failed(source))?[..] {
            [handle] => {
                let found = session.get_attributes(handle, &[AttributeType::KeyType]);
                let found = found.map_err(|source| self.failed(source))?;
                // SoftHSM 2.6 crashes when a key is used with the mechanism of another type.
                if found != [Attribute::KeyType(wanted)] {
                    return Err(self.failed(Error::Pkcs11(RvError::KeyTypeInconsistent, Function::SignInit)));
                }
                Ok(handle)
            }
            [] => {
                let (token, key) = names();
                Err(TokenError::NoKey { token, key })
            }
            _ => {
                let (token, key) = names();
                Err(TokenError::Ambiguous { token, key })
            }
        }
    }

    fn open_session(&self, library: &Pkcs11, slot: Slot) -> Result<OpenSession, TokenError> {
        let session = library.open_ro_session(slot).map_err(|source| self.failed(source))?;
        Ok(OpenSession { session, keys: HashMap::new() })
    }

    /// Begins all sessions anew, unless another thread has since login number `seen`.
    fn log_in(&self, seen: u64) -> Result<(), TokenError> {
        let mut refused_pin = lock(&self.refused_pin);
        if lock(&self.state).login != seen {
            return Ok(());
        }
        if let Some(why) = *refused_pin {
            return Err(TokenError::WrongPin { token: self.name(), why });
        }
        let old = std::mem::take(&mut lock(&self.state).idle);
        drop(old);
        let begun = self.begin().or_else(|error| match error {
            // At the start nothing is old.
            TokenError::NoToken { .. } | TokenError::Failed { .. } if seen > 0 && self.module.restart() => self.begin(),
            error => Err(error),
        });
        let mut state = lock(&self.state);
        match begun {
            Ok((slot, sessions)) => {
                self.logins.succeeded.fetch_add(1, Ordering::Relaxed);
                *state = State { login: seen + 1, slot: Some(slot), idle: sessions, rests_until: None };
                Ok(())
            }
            Err(error) => {
                self.logins.failed.fetch_add(1, Ordering::Relaxed);
                state.rests_until = Some(Instant::now() + REST);
                if let TokenError::WrongPin { why, .. } = error {
                    *refused_pin = Some(why);
                }
                Err(error)
            }
        }
    }

    fn begin(&self) -> Result<(Slot, Vec<OpenSession>), TokenError> {
        let (library, _call) = self.module.call();
        let slot = self.slot(library)?;
        let info = library.get_token_info(slot).map_err(|source| self.failed(source))?;
        let mut sessions = Vec::with_capacity(self.config.sessions);
        for room in 0..self.config.sessions {
            match self.open_session(library, slot) {
                Ok(open) => sessions.push(open),
                Err(TokenError::Failed { source: Error::Pkcs11(RvError::SessionCount, _), .. }) => {
                    return Err(TokenError::Sessions { token: self.name(), room });
                }
                Err(error) => return Err(error),
            }
        }
        if let (Some(first), true) = (sessions.first(), info.login_required()) {
            let pin = self.config.pin.as_ref().ok_or_else(|| TokenError::NoPin(self.name()))?;
            // It holds for all sessions of the process with this token.
            match first.session.login(UserType::User, Some(&AuthPin::from(pin.0.clone()))) {
                Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
                Err(Error::Pkcs11(
                    why @ (RvError::PinIncorrect
                    | RvError::PinInvalid
                    | RvError::PinLenRange
                    | RvError::PinExpired
                    | RvError::PinLocked),
                    _,
                )) => return Err(TokenError::WrongPin { token: self.name(), why }),
                Err(source) => return Err(self.failed(source)),
            }
        }
        Ok((slot, sessions))
    }

    fn slot(&self, library: &Pkcs11) -> Result<Slot, TokenError> {
        let slots = library.get_slots_with_token().map_err(|source| self.failed(source))?;
        let label = |slot: Slot| library.get_token_info(slot).ok().map(|info| info.label().trim_end().to_owned());
        let is_wanted = |slot: &Slot| match &self.config.token {
            TokenName::Slot(number) => slot.id() == u64::from(*number),
            TokenName::Label(wanted) => label(*slot).as_ref() == Some(wanted),
        };
        if let Some(slot) = slots.iter().find(|slot| is_wanted(slot)) {
            return Ok(*slot);
        }
        let labels = slots.iter().filter_map(|slot| Some((label(*slot).filter(|label| !label.is_empty())?, slot.id())));
        let found = labels.map(|(label, slot)| format!("`{label}` in slot {slot}"));
        let found = Some(found.collect::<Vec<_>>().join(", ")).filter(|found| !found.is_empty());
        Err(TokenError::NoToken { name: self.name(), found: found.unwrap_or_else(|| "none".to_owned()) })
    }
}
