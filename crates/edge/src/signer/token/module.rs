//! Modules of PKCS #11 that this process has loaded.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError},
};

use cryptoki::{
    context::{CInitializeArgs, CInitializeFlags, Pkcs11},
    error::{Error, RvError},
};

use super::TokenError;

/// Modules by path. A module is initialized once per process (PKCS #11 3.1, C_Initialize) and stays loaded: many do not survive to be
/// unloaded, and a reload needs it again at once.
static LOADED: Mutex<Vec<(PathBuf, Arc<Module>)>> = Mutex::new(Vec::new());

/// A module that is loaded.
pub(super) struct Module {
    library: Pkcs11,
    /// Read by threads that call it: nothing else may be under way when it begins anew (C_Finalize).
    calls: RwLock<()>,
}

impl Module {
    /// Loads a module, or finds it loaded.
    ///
    /// # Errors
    /// When there is no such library, it is no module, or does not start.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, TokenError> {
        let error = |source| TokenError::Module { path: path.to_owned(), source };
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = loaded.iter().find(|(other, _)| other == path) {
            return Ok(module.clone());
        }
        let library = Pkcs11::new(path).map_err(error)?;
        initialize(&library).map_err(error)?;
        let module = Arc::new(Self { library, calls: RwLock::new(()) });
        loaded.push((path.to_owned(), module.clone()));
        Ok(module)
    }

    /// Functions of the module. It does not begin anew while the guard lives.
    pub(super) fn call(&self) -> (&Pkcs11, RwLockReadGuard<'_, ()>) {
        (&self.library, self.calls.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins anew: some modules find a token that was gone in no other way. All sessions end. Returns whether it has: not while calls are
    /// under way.
    pub(super) fn restart(&self) -> bool {
        let _alone = match self.calls.try_write() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // It may have ended before, and not begun again.
        let ended = self.library.clone().finalize();
        let begun = initialize(&self.library);
        tracing::debug!("the PKCS #11 module begins anew: {ended:?}, {begun:?}");
        begun.is_ok()
    }
}

/// Initializes a module, unless it is.
fn initialize(library: &Pkcs11) -> Result<(), Error> {
    // Its functions are called on several threads.
    match library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        Err(error) => Err(error),
    }
}
