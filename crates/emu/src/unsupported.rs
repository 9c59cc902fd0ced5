//! The relay on unsupported systems.

use std::{convert::Infallible, net::SocketAddr};

use crate::{RelayConfig, RelayError, Statistics};

/// A relay. Cannot be started on this system.
#[derive(Debug)]
pub struct Relay(Infallible);

impl Relay {
    /// Cannot be started on this system.
    ///
    /// # Errors
    /// Always.
    pub fn start(_: &RelayConfig) -> Result<Self, RelayError> {
        Err(RelayError::Unsupported)
    }

    /// Address that clients send to.
    pub fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    /// Counters since the start.
    ///
    /// # Errors
    /// Never: there is no relay.
    pub fn statistics(&self) -> Result<Statistics, RelayError> {
        match self.0 {}
    }

    /// Stops the relay.
    ///
    /// # Errors
    /// Never: there is no relay.
    pub fn stop(self) -> Result<Statistics, RelayError> {
        match self.0 {}
    }
}
