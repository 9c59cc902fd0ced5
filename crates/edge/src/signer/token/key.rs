//! A private key in a token.

use std::{path::Path, sync::Arc, time::Duration};

use cryptoki::error::{Error, RvError};
use rustls::{SignatureScheme, pki_types::CertificateDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{TokenError, config::KeyName, mechanism::Operation, pool::Token};
use crate::{certificate::provider, remote_signer::schemes};

/// Time in which a signature gets a session. Gateways wait for 2 s, unless they are told otherwise.
const WAIT: Duration = Duration::from_secs(5);
/// Text that is signed to see whether key and certificate belong together. No TLS signs it.
const TRIAL: &[u8] = b"tiderace signer: does this key belong to its certificate?";

/// Key in a token, for one certificate.
pub(in crate::signer) struct TokenKey {
    token: Arc<Token>,
    name: KeyName,
    schemes: &'static [SignatureScheme],
}

impl TokenKey {
    /// Finds a key, and sees that the certificate verifies what it signs, in all ways in which gateways ask.
    ///
    /// # Errors
    /// When there is no such key, or it does not belong to the certificate, or does not sign as TLS needs it.
    pub(in crate::signer) fn open(
        token: &Arc<Token>,
        name: KeyName,
        file: &Path,
        certificate: &CertificateDer<'_>,
    ) -> Result<Self, TokenError> {
        let key = || name.to_string();
        let mismatch = || TokenError::Mismatch { key: key(), certificate: file.to_owned() };
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| mismatch())?;
        let public = &parsed.public_key().subject_public_key.data;
        let (_, schemes) = schemes(certificate).ok_or_else(mismatch)?;
        for scheme in schemes {
            let operation = Operation::new(*scheme, TRIAL).ok_or_else(mismatch)?;
            let signature = match token.sign(&name, &operation) {
                Ok(signature) => signature,
                Err(TokenError::Failed { source: Error::Pkcs11(RvError::KeyTypeInconsistent, _), .. }) => {
                    return Err(mismatch());
                }
                Err(TokenError::Failed { source, .. }) => {
                    return Err(TokenError::Scheme { key: key(), scheme: *scheme, source });
                }
                Err(error) => return Err(error),
            };
            let algorithms = provider().signature_verification_algorithms.mapping;
            let mut algorithms = algorithms.iter().filter(|(other, _)| other == scheme).flat_map(|(_, all)| *all);
            if !algorithms.any(|algorithm| algorithm.verify_signature(public, TRIAL, &signature).is_ok()) {
                return Err(mismatch());
            }
        }
        Ok(Self { token: token.clone(), name, schemes })
    }

    /// Operation that signs a message in this way; `None` when the key does not.
    pub(in crate::signer) fn operation(&self, scheme: SignatureScheme, message: &[u8]) -> Option<Operation> {
        if self.schemes.contains(&scheme) { Operation::new(scheme, message) } else { None }
    }

    /// Signs, on a thread where a slow device delays nothing else.
    ///
    /// # Errors
    /// When the token does not sign, or has no session free in time.
    pub(in crate::signer) async fn sign(self: Arc<Self>, operation: Operation) -> Result<Vec<u8>, TokenError> {
        let place = tokio::time::timeout(WAIT, self.token.permits.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            self.token.note(Err(&TokenError::Busy));
            return Err(TokenError::Busy);
        };
        let signing = tokio::task::spawn_blocking(move || {
            let _place = place;
            let outcome = self.token.sign(&self.name, &operation);
            self.token.note(outcome.as_ref().map(|_| ()));
            outcome
        });
        // The thread is lost with the process, or by a panic of its own.
        signing.await.unwrap_or(Err(TokenError::Resting))
    }
}
