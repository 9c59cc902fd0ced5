//! Other implementations of the TLS interface, for tests.
//!
//! [`Toy`] is a handshake without cryptography: messages of given sizes, publicly known secrets. [`Delayed`] makes the sessions of any
//! configuration wait at chosen points. Neither must ever be used on a network.

mod delayed;
mod toy;

pub use delayed::{Delay, Delayed};
pub use toy::Toy;

use super::{Progress, Session, TlsError, TlsEvent};

/// Passes events from one session to the other until neither has any, and returns all events other than bytes: first the client's, then the
/// server's. A session that waits is resumed at once.
pub fn converse(
    client: &mut dyn Session,
    server: &mut dyn Session,
) -> Result<(Vec<TlsEvent>, Vec<TlsEvent>), (wire::Side, TlsError)> {
    let mut client_said = Vec::new();
    let mut server_said = Vec::new();
    loop {
        let quiet = relay(client, server, &mut client_said).map_err(|error| (wire::Side::Server, error))?
            & relay(server, client, &mut server_said).map_err(|error| (wire::Side::Client, error))?;
        if quiet {
            return Ok((client_said, server_said));
        }
    }
}

fn relay(from: &mut dyn Session, to: &mut dyn Session, said: &mut Vec<TlsEvent>) -> Result<bool, TlsError> {
    let mut quiet = true;
    while let Some(event) = from.next_event() {
        quiet = false;
        match event {
            TlsEvent::Write { level, data } => {
                let mut progress = to.read(level, &data)?;
                while let Progress::Pending(_) = progress {
                    progress = to.resume()?;
                }
            }
            event => said.push(event),
        }
    }
    Ok(quiet)
}
