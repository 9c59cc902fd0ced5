//! Private keys in a device, by way of PKCS #11.
//!
//! A `module` is the library of the device's vendor. A `pool` has sessions of one token, logged in, and begins them anew when the token has
//! lost them. A `key` signs what TLS asks for; `mechanism` says how the device is asked. `config` and `error` are for the operator.

mod config;
mod error;
mod key;
mod mechanism;
mod module;
mod pool;

pub use self::{config::Pkcs11Token, error::TokenError};
pub(super) use self::{
    config::{KeyName, TokenConfig},
    key::TokenKey,
    mechanism::Operation,
    pool::{Logins, Token},
};
