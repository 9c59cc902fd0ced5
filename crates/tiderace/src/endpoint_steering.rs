//! Kernel steering of an endpoint's packets: see [`steering`](crate::steering).

use std::{io, os::fd::BorrowedFd};

use crate::endpoint::Endpoint;

impl Endpoint {
    /// Returns the reason why the kernel does not steer the packets of processes; `None` if it does.
    pub fn steering_fault(&self) -> Option<&str> {
        self.steering.table.as_ref().err().map(String::as_str)
    }

    /// Table of the kernel's program, for [`KernelSteering::Adopt`](crate::KernelSteering::Adopt) of the next process.
    pub fn steering_table(&self) -> Option<BorrowedFd<'_>> {
        self.steering.table.as_ref().ok().map(|table| table.as_fd())
    }

    /// Returns whether sockets of older processes are, or may come to be, beside those of the endpoint, so that the place of another
    /// socket in the kernel's order cannot be known.
    pub fn is_among_others(&self) -> bool {
        self.steering.is_among_others()
    }

    /// Lets the kernel pass the packets of this process to sockets of its own, or no more. Another process may read the shared ones then.
    /// Without a table nothing changes: the other process forwards these packets.
    ///
    /// # Errors
    /// When a socket cannot be opened. The packets of its shard are forwarded.
    pub fn steer_own(&self, steered: bool) -> io::Result<()> {
        let Ok(table) = &self.steering.table else { return Ok(()) };
        let mut ways = self.steering.ways();
        ways.drain(..).for_each(|way| way.leave());
        for shared in self.shards.iter().filter(|_| steered) {
            let mut state = shared.lock();
            // The serving process ends the connections of a lost shard.
            if state.is_lost() {
                continue;
            }
            let own = table.own_socket(shared.shard, &self.sockets[0])?;
            own.enter()?;
            ways.push(own.way.clone());
            state.own_socket = Some(own);
            state.wake_driver();
        }
        Ok(())
    }
}
