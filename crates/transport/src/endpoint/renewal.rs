//! Renewal of connection IDs: those of all connections, or the way in which they are made.

use super::Endpoint;
use crate::cid::ConnectionIdGenerator;

/// Generator whose IDs have another length: short headers do not carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection IDs have {expected} bytes, and the new ones would have {found}")]
pub struct IdLengthError {
    /// Bytes of the IDs in use.
    pub expected: usize,
    /// Bytes of the new ones.
    pub found: usize,
}

impl Endpoint {
    /// Makes connection IDs with `ids` from here on, and lets all connections replace theirs. `ids` has to read the older ones as well.
    ///
    /// # Errors
    /// When the IDs have another length; nothing is changed then.
    pub fn set_ids(&mut self, ids: Box<dyn ConnectionIdGenerator>) -> Result<(), IdLengthError> {
        let (expected, found) = (self.ids.len(), ids.len());
        if expected != found {
            return Err(IdLengthError { expected, found });
        }
        self.ids = ids;
        self.renew_ids();
        Ok(())
    }

    /// Lets all connections replace the connection IDs that their peers hold, with reset tokens of the present key.
    pub fn renew_ids(&mut self) {
        for index in 0..u32::try_from(self.slots.len()).expect("slots are counted in 32 bits") {
            let Some(connection) = &mut self.slots[index as usize].connection else { continue };
            connection.local_ids_mut().renew();
            self.mark_dirty(index);
        }
    }
}
