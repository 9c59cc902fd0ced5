//! Reports, log files and captures, as people and other programs open them.

use super::{Case, face_lab};

/// The cases in their order.
pub(crate) fn cases() -> Vec<Case> {
    face_lab::cases()
}
