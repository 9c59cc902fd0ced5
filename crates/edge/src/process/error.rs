//! Errors of a gateway at its start, reload or upgrade, each with advice.

use std::{io, net::SocketAddr, path::PathBuf};

use crate::{
    activation::ActivationError,
    config::{ConfigError, read::ConfigText, system},
    keys::KeysError,
    setup::SetupError,
    upgrade::{RefusalCause, UpgradeError},
};

/// The gateway cannot start, or cannot take a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The configuration is not valid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// An address cannot be served.
    #[error("cannot listen at {address}: {why}")]
    Listen {
        /// Field of the configuration, as in `metrics.listen`.
        field: &'static str,
        /// The address.
        address: String,
        /// Error of the system.
        #[source]
        why: io::Error,
    },
    /// Sockets of the service manager cannot be used.
    #[error("{0}")]
    Activation(#[from] ActivationError),
    /// The threads of the workers cannot be started.
    #[error("{0}")]
    Workers(#[source] io::Error),
    /// Keys of this process cannot be made.
    #[error("{0}")]
    Keys(#[from] KeysError),
    /// The admin socket cannot be opened.
    #[error("cannot open the admin socket {}: {source}", path.display())]
    AdminSocket {
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The system refuses what a field of the configuration asks for.
    #[error("{fault}")]
    Refused {
        /// The same with its place in the configuration, as `tiderace edge check` says it.
        fault: Box<ConfigError>,
        /// Error of the part that cannot be opened.
        source: Box<ProcessError>,
    },
    /// The task that read the configuration did not end.
    #[error("{0}")]
    Interrupted(#[source] tokio::task::JoinError),
    /// Another part of the configuration cannot be set up.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// Connection IDs would change their form, so that existing connections could not be found.
    #[error("the connection IDs of `[load-balancer]` stay what they were at the start")]
    Routable,
    /// The process cannot take over from another one, or has handed over itself.
    #[error("{0}")]
    Upgrade(#[from] UpgradeError),
}

impl ProcessError {
    /// An address that cannot be served.
    pub(super) fn listen(field: &'static str, address: SocketAddr, why: io::Error) -> Self {
        Self::Listen { field, address: address.to_string(), why }
    }

    /// Gives a refusal of the system its place in the configuration.
    pub(super) fn locate(self, text: &ConfigText) -> Self {
        let fault = match &self {
            Self::Listen { field, address, why } => system::listen(field, address, why),
            Self::AdminSocket { path, source } => system::admin_socket(path, source),
            Self::Setup(SetupError::AccessLog { path, source }) => system::access_log(path, source),
            Self::Setup(SetupError::Device { route, device, source }) => system::device(*route, device, source),
            _ => return self,
        };
        Self::Refused { fault: Box::new(text.locate(fault)), source: Box::new(self) }
    }

    /// Part that the older process of an upgrade is told.
    pub(super) fn refusal_cause(&self) -> RefusalCause {
        match self {
            Self::Config(_) => RefusalCause::Configuration,
            Self::Refused { source, .. } => source.refusal_cause(),
            Self::Listen { .. } | Self::AdminSocket { .. } | Self::Activation(_) => RefusalCause::Listener,
            Self::Routable => RefusalCause::ConnectionIds,
            Self::Workers(_) | Self::Keys(_) | Self::Interrupted(_) | Self::Setup(_) => RefusalCause::Setup,
            Self::Upgrade(_) => RefusalCause::HandOver,
        }
    }

    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint.clone(),
            Self::Refused { fault, .. } => fault.hint.clone(),
            Self::Upgrade(error) => error.hint(),
            Self::Activation(error) => Some(error.hint()),
            Self::Routable => {
                Some("a reload changes `key` together with `config-id`, an upgrade `server-id` and `nonce-length` too; where `[[load-balancer.machine]]` \
                      is set, list the new ones in `[[load-balancer.connection-ids]]` of all machines and reload these before, and keep \
                      `server-id`; else drain this machine at the load balancers, restart its service, and let it serve again".to_owned())
            }
            Self::Listen { .. }
            | Self::Workers(_)
            | Self::Keys(_)
            | Self::AdminSocket { .. }
            | Self::Interrupted(_)
            | Self::Setup(_) => None,
        }
    }
}
