//! Sender of datagrams at a fixed rate.

use std::{future::Future, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use tiderace::{Connection, DatagramError};
use tokio::time::{Instant, sleep_until};

use super::{Clock, HEADER, Plan, Sent, nanos};
use crate::perf::{
    progress::Moved,
    protocol,
    transfer::{ANSWER_TIME, TransferError},
};

/// Datagrams that are sent together at most, when the program was late.
const BURST: u64 = 256;
/// Time between two looks at the queue when everything has been offered.
const LOOK: Duration = Duration::from_millis(1);

/// Time from the beginning at which datagram `number` is due.
#[expect(clippy::cast_precision_loss, reason = "below 2^53 datagrams")]
fn due(plan: &Plan, number: u64) -> Duration {
    Duration::from_secs_f64(number as f64 * plan.size as f64 * 8.0 / plan.rate.max(1) as f64)
}

/// Sends by the plan until its time has ended or `stop` is ready, and waits until the queue is empty.
///
/// # Errors
/// When the connection ends, or the peer takes no datagrams.
pub(super) async fn send(
    connection: &Connection,
    plan: &Plan,
    stop: impl Future<Output = ()>,
    moved: &Moved,
) -> Result<Sent, TransferError> {
    let unsent =
        || connection.stats().map(|stats| stats.datagram_frames_dropped_unsent + stats.datagram_frames_expired);
    let before = unsent().unwrap_or(0);
    let (clock, started) = (Clock::new(), Instant::now());
    let size = usize::try_from(plan.size).unwrap_or(usize::MAX);
    let (mut stop, mut offered, mut refused) = (pin!(stop), 0, 0);
    let mut is_over = false;
    // A program that cannot keep the rate ends in time all the same, and has offered less.
    while !is_over && started.elapsed() < plan.span {
        for _ in 0..BURST {
            if due(plan, offered) > started.elapsed() || due(plan, offered) >= plan.span {
                break;
            }
            match connection.send_datagram(datagram(offered, clock.now(), size)) {
                Ok(()) => moved.add(size),
                // The path has become narrower.
                Err(DatagramError::Refused(tiderace::transport::datagrams::SendDatagramError::TooLarge { .. })) => {
                    refused += 1;
                }
                Err(DatagramError::ConnectionClosed(reason)) => return Err(reason.into()),
                Err(_) => return Err(TransferError::Answer),
            }
            offered += 1;
        }
        tokio::select! {
            biased;
            () = &mut stop => is_over = true,
            () = sleep_until(started + due(plan, offered).min(plan.span)) => {}
        }
        // A program that is late has no sleep in which others run.
        tokio::task::yield_now().await;
    }
    let elapsed = started.elapsed();
    let until = Instant::now() + ANSWER_TIME;
    let mut waiting;
    loop {
        waiting = connection.stats().map_or(0, |stats| stats.datagram_frames_waiting);
        if waiting == 0 || Instant::now() >= until {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    let unsent = unsent().unwrap_or(before).saturating_sub(before) + waiting + refused;
    Ok(Sent { offered, unsent, nanos: nanos(elapsed) })
}

/// Number, time, and a filling.
fn datagram(number: u64, time: u64, size: usize) -> Bytes {
    let head: [u8; HEADER] = protocol::encode([number, time]);
    let mut data = BytesMut::with_capacity(size);
    data.extend_from_slice(&head);
    data.extend_from_slice(&protocol::payload()[..size.saturating_sub(HEADER)]);
    data.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_payload() {
        let plan = Plan { rate: 8_000_000, size: 1_000, span: Duration::from_secs(1) };
        assert_eq!(due(&plan, 0), Duration::ZERO);
        assert_eq!(due(&plan, 1_000), Duration::from_secs(1));
        let datagram = datagram(7, 9, 100);
        assert_eq!((datagram.len(), &datagram[..8]), (100, &7u64.to_be_bytes()[..]));
    }
}
