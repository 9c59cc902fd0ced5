//! Check of received tickets at a client, before rustls processes them.
//!
//! rustls treats a ticket whose early data has the size 0 as one without early data, and reports another error for other sizes.

use wire::Reader;

const NEW_SESSION_TICKET: u8 = 4;
const EARLY_DATA: u16 = 42;
/// The one size that QUIC permits: early data is limited by flow control.
const ONLY_SIZE: [u8; 4] = [0xff; 4];
/// rustls refuses messages that are longer.
const LONGEST_MESSAGE: usize = 0xffff;

/// Reason of the error for a ticket with another size.
pub(in crate::tls) const WRONG_EARLY_SIZE: &str = "a ticket limits early data by its size";

/// Owns the beginning of a message whose end has not arrived.
#[derive(Default)]
pub(in crate::tls) struct TicketCheck {
    pending: Vec<u8>,
}

impl TicketCheck {
    /// Processes messages after the handshake; returns `false` if a ticket has an invalid early data size.
    // RFC 9001 §4.6.1 MUST-1: any size of early data other than 0xffffffff is PROTOCOL_VIOLATION
    pub(in crate::tls) fn read(&mut self, bytes: &[u8]) -> bool {
        self.pending.extend_from_slice(bytes);
        let mut fine = true;
        let mut read = 0;
        while let Some((head, rest)) = self.pending[read..].split_first_chunk::<4>() {
            let len = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            if len > LONGEST_MESSAGE {
                read = self.pending.len();
                break;
            }
            let Some(body) = rest.get(..len) else { break };
            fine &= head[0] != NEW_SESSION_TICKET || early_size(body).is_none_or(|size| size == ONLY_SIZE);
            read += 4 + len;
        }
        self.pending.drain(..read);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        fine
    }
}

/// The size of early data in a NewSessionTicket message, if it speaks of it and can be read.
// RFC 8446 §4.6.1: lifetime, age_add, nonce, ticket, extensions.
fn early_size(body: &[u8]) -> Option<[u8; 4]> {
    let mut r = Reader::new(body);
    r.bytes(8).ok()?;
    let nonce = r.u8().ok()?;
    r.bytes(nonce.into()).ok()?;
    let ticket = r.u16().ok()?;
    r.bytes(ticket.into()).ok()?;
    r.u16().ok()?;
    while let (Ok(ty), Ok(len)) = (r.u16(), r.u16()) {
        let value = r.bytes(len.into()).ok()?;
        if ty == EARLY_DATA {
            return value.try_into().ok();
        }
    }
    None
}
