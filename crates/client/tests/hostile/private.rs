//! A server of a private protocol that opens streams and sends datagrams which nobody asks for.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use tiderace::{Profile, transport::memory::ProcessBudget};
use tiderace_client::{
    Leg, Route, Settings,
    private::{Channel, PrivateClient},
};

use crate::servers::{LIMIT, PATIENT, quic};

/// Streams that nobody accepts stay within what the profile allows at a time; what connections hold is charged to the budget of the settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_accepts_are_bounded_and_charged() {
    let opened = Arc::new(AtomicU64::new(0));
    let opens = opened.clone();
    let (address, trust) = quic(
        Profile::default(),
        |_| {},
        move |connection| {
            let opens = opens.clone();
            async move {
                for _ in 0..1_000 {
                    let _ = connection.send_datagram(Bytes::from_static(&[7; 1_000]));
                }
                let mut kept = Vec::new();
                while let Ok((mut send, recv)) = connection.open_bi().await {
                    opens.fetch_add(1, Ordering::SeqCst);
                    let _ = send.write_all(b"x").await;
                    kept.push((send, recv));
                }
            }
        },
    );
    let memory = ProcessBudget::new(123_456_789);
    let settings = Settings { trust, timeouts: PATIENT, memory: memory.clone(), ..Settings::default() };
    let client = PrivateClient::new(&settings, h3_quic::ALPN, b"private-qx").unwrap();
    let route = Route { only: Some(Leg::Quic), ..Route::default() };
    let connected = tokio::time::timeout(LIMIT, client.connect("127.0.0.1", address.port(), &route)).await.unwrap();
    let Channel::Quic(_, connection, _) = connected.unwrap().channel else { panic!("it is over QUIC") };
    assert_eq!(connection.memory_budget().unwrap().process().limit(), 123_456_789);
    let most = Profile::default().streams.max_streams_bidi;
    while opened.load(Ordering::SeqCst) < most {
        tokio::task::yield_now().await;
    }
    // One is taken and ended: there is room for one more, and no others.
    let (send, recv) = tokio::time::timeout(LIMIT, connection.accept_bi()).await.unwrap().unwrap();
    drop((send, recv));
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!((most..=most + 1).contains(&opened.load(Ordering::SeqCst)), "{opened:?} of {most}");
    client.close().await;
}
