//! Relief when the memory of the process is exhausted: closes the connections that hold the most.

use units::Instant;

use super::Endpoint;
use crate::memory::ProcessBudget;

/// Mean number of connections examined for each batch; a choice examines all of them.
const LOOKED_AT: usize = 16;

/// Owner of the budget of the process, and of the time at which connections are compared with it.
pub(super) struct Relief {
    budget: ProcessBudget,
    /// Batches until connections are looked at again.
    batches: usize,
}

impl Relief {
    pub(super) fn new(budget: ProcessBudget) -> Self {
        Self { budget, batches: 0 }
    }

    pub(super) fn budget(&self) -> &ProcessBudget {
        &self.budget
    }
}

impl Endpoint {
    /// Closes the costliest connections while the process's memory is exhausted. A connection that holds less than a fair share
    /// is never closed for it.
    ///
    /// While the memory is exhausted, some connection holds at least a fair share, so this always ends the shortage; if the connection is
    /// another endpoint's, that endpoint does.
    #[inline]
    pub(super) fn relieve(&mut self, now: Instant) {
        if !self.relief.budget.is_exhausted() {
            return;
        }
        match self.relief.batches.checked_sub(1) {
            Some(left) => self.relief.batches = left,
            None => self.close_costliest(now),
        }
    }

    #[cold]
    fn close_costliest(&mut self, now: Instant) {
        self.relief.batches = self.slots.len() / LOOKED_AT;
        let fair = self.relief.budget.fair_share();
        // Layers above may still hold memory of connections that have ended: it is on its way back.
        let mut returning = 0;
        let mut costliest: Vec<(u64, u32)> = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(connection) = &mut slot.connection else { continue };
            if connection.is_closed() {
                connection.release_memory(true);
                returning += connection.memory_budget().held();
            } else {
                let held = connection.memory_budget().held();
                if held >= fair {
                    costliest.push((held, index as u32));
                }
            }
        }
        costliest.sort_unstable_by(|a, b| b.cmp(a));
        let limit = self.relief.budget.limit();
        for (_, index) in costliest {
            if self.relief.budget.held().saturating_sub(returning) < limit {
                break;
            }
            let Some(connection) = &mut self.slots[index as usize].connection else { continue };
            connection.end_for_memory(now, true);
            // Its end is told first: that asks what was in progress.
            self.hear(index);
            let Some(connection) = &mut self.slots[index as usize].connection else { continue };
            connection.release_memory(true);
            returning += connection.memory_budget().held();
            self.mark_dirty(index);
        }
    }
}
