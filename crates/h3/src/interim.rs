//! Interim responses (RFC 9110 §15.2): those that a server sends before the response, and those that a client gets.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use http::{Response, response::Parts};
use tiderace::{Charge, ConnectionBudget};

use crate::fields;

/// Interim responses of a request, at most: clients take no more of them (the client of this crate takes as many).
const MAX_COUNT: usize = 16;
/// Interim responses that wait to be sent, and the size of the fields of each, at most.
const MAX_WAITING: usize = 4;
const MAX_FIELDS: u64 = 16 * 1024;

/// Sender of interim responses, in the extensions of a request that a server gets. Clones send for the same request. What is sent after the
/// response goes nowhere.
#[derive(Clone)]
pub struct InterimResponses(Arc<Inner>);

struct Inner {
    memory: ConnectionBudget,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Parts, Charge)>,
    /// Number of all.
    count: usize,
    waker: Option<Waker>,
    is_over: bool,
}

/// Interim response that is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// The status is none of an interim response, or is 101, which HTTP/3 does not have (RFC 9114 §4.5).
    #[error("the status is none of an interim response over HTTP/3")]
    Status,
    /// The request had as many as clients take, too many wait, its fields are too large, or the connection holds too much.
    #[error("there is no room for another interim response")]
    NoRoom,
    /// The response has begun, or the request has ended.
    #[error("the response has begun")]
    Over,
}

impl fmt::Debug for InterimResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterimResponses").field("waiting", &self.lock().waiting.len()).finish()
    }
}

impl InterimResponses {
    pub(crate) fn new(memory: &ConnectionBudget) -> Self {
        Self(Arc::new(Inner { memory: memory.clone(), queue: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an interim response.
    ///
    /// # Errors
    /// When it is none, there is no room, or the response has begun.
    pub fn send(&self, response: Response<()>) -> Result<(), NotSent> {
        let (head, ()) = response.into_parts();
        // RFC 9114 §4.5: HTTP/3 has no 101
        if !head.status.is_informational() || head.status == http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(NotSent::Status);
        }
        let size = fields::size(fields::of_response(&head));
        let mut queue = self.lock();
        if queue.is_over {
            return Err(NotSent::Over);
        }
        let fits = size <= MAX_FIELDS && queue.waiting.len() < MAX_WAITING && queue.count < MAX_COUNT;
        let charge = self.0.memory.charge(size).filter(|_| fits);
        queue.waiting.push_back((head, charge.ok_or(NotSent::NoRoom)?));
        queue.count += 1;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// The next one to be sent.
    pub(crate) async fn next(&self) -> (Parts, Charge) {
        poll_fn(|cx| {
            let mut queue = self.lock();
            if let Some(next) = queue.waiting.pop_front() {
                return Poll::Ready(next);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The ones that still wait when the response begins; later ones go nowhere.
    pub(crate) fn end(&self) -> VecDeque<(Parts, Charge)> {
        let mut queue = self.lock();
        queue.is_over = true;
        std::mem::take(&mut queue.waiting)
    }
}

/// Receiver of interim responses, put into the extensions of a request that a client sends. Without it they are skipped.
#[derive(Clone)]
pub struct OnInterim(Arc<dyn Fn(Response<()>) + Send + Sync>);

impl fmt::Debug for OnInterim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnInterim")
    }
}

impl OnInterim {
    /// Receiver that calls a function for each interim response. It must not block.
    pub fn new(call: impl Fn(Response<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn call(&self, response: Response<()>) {
        (self.0)(response);
    }
}

#[cfg(test)]
mod tests {
    use tiderace::ProcessBudget;

    use super::*;

    #[test]
    fn what_waits_is_bounded_and_charged() {
        let memory = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
        let interim = InterimResponses::new(&memory);
        let response = |status: u16, size: usize| {
            Response::builder().status(status).header("link", "x".repeat(size)).body(()).unwrap()
        };
        for status in [101, 200, 404] {
            assert_eq!(interim.send(response(status, 1)), Err(NotSent::Status));
        }
        assert_eq!(interim.send(response(103, 16 * 1024)), Err(NotSent::NoRoom));
        for _ in 0..MAX_WAITING {
            interim.send(response(103, 1_000)).unwrap();
        }
        assert_eq!(interim.send(response(103, 1)), Err(NotSent::NoRoom));
        assert!(memory.held() >= 4_000);
        let waiting = interim.end();
        assert_eq!((waiting.len(), interim.send(response(103, 1))), (MAX_WAITING, Err(NotSent::Over)));
        drop(waiting);
        assert_eq!(memory.held(), 0);
        // One after the other, up to their number.
        let interim = InterimResponses::new(&memory);
        for _ in 0..MAX_COUNT {
            interim.send(response(103, 1)).unwrap();
            assert!(interim.lock().waiting.pop_front().is_some());
        }
        assert_eq!(interim.send(response(103, 1)), Err(NotSent::NoRoom));
    }
}
