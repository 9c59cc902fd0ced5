//! Server's side of a measurement with datagrams.

use tiderace::{Connection, RecvStream, SendStream};

use super::{Plan, READY, SMALLEST, Sent, TOO_LARGE, fits, receive::receive, send::send};
use crate::perf::{
    progress::Moved,
    protocol::{PROTOCOL_ERROR, read_exact},
    transfer::TransferError,
};

/// Receives datagrams of the client, and reports those that arrived.
pub(crate) async fn take(
    stream: &mut SendStream,
    recv: &mut RecvStream,
    connection: &Connection,
    moved: &Moved,
) -> Result<(), TransferError> {
    stream.write_all(&[READY]).await?;
    let account = async { read_exact(recv).await?.map(Sent::decode).ok_or(TransferError::Answer) };
    let (_, received) = receive(connection, account, moved).await?;
    stream.write_all(&received.encode()).await?;
    Ok(())
}

/// Sends datagrams to the client until it asks to stop. Returns their number.
pub(crate) async fn give(
    stream: &mut SendStream,
    recv: &mut RecvStream,
    connection: &Connection,
    plan: Plan,
    moved: &Moved,
) -> Result<(), TransferError> {
    if plan.rate == 0 || plan.size < SMALLEST || plan.span > Plan::LONGEST {
        stream.reset(PROTOCOL_ERROR)?;
        return Err(TransferError::Answer);
    }
    if let Err(most) = fits(connection, plan.size).await {
        let most = most.to_be_bytes();
        stream.write_all(&[&[TOO_LARGE], &most[..]].concat()).await?;
        return Ok(());
    }
    stream.write_all(&[READY]).await?;
    // The end of the client's half, or of the connection, which sending notices by itself.
    let stop = async { while let Ok(Some(_)) = recv.read_chunk(usize::MAX).await {} };
    let sent = send(connection, &plan, stop, moved).await?;
    stream.write_all(&sent.encode()).await?;
    Ok(())
}
