//! External private key.

use std::task::Waker;

/// Signs for a server. A signature may take any time: meanwhile the session returns [`Progress::Pending`](crate::tls::Progress::Pending)
/// with [`Waiting::Signature`](crate::tls::Waiting::Signature), and the signer resumes it.
pub trait Signer: Send + Sync {
    /// The ways to sign that the key can do, as numbers of the TLS registry (SignatureScheme), the preferred one first.
    fn schemes(&self) -> Vec<u16>;

    /// Begins to sign `message`, as a whole and not hashed, in a way out of [`schemes`](Self::schemes). Called from the
    /// thread that runs the handshake, so it should not wait.
    fn sign(&self, scheme: u16, message: &[u8]) -> Box<dyn Signature>;
}

/// A pending signature.
pub trait Signature: Send {
    /// The signature, or why there is none; `None` while that is not known: then `waker` is woken when it is. Asked at once and
    /// at each resumption, and not again after it has answered.
    fn poll(&mut self, waker: &Waker) -> Option<Result<Vec<u8>, String>>;
}
