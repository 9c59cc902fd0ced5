//! Clients that return with their session tickets while machines are added, drained and ended: nearly all of their requests leave as early
//! data, because all machines share one key ring.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tiderace::{ClientConfig, EarlyData, Endpoint, Profile, RustlsClient};
use tokio::task::JoinSet;

use crate::{
    clients::Site,
    farm::{Balancer, Farm},
    fleet::{LIMIT, signal},
    machine, number,
};

/// Returns of each client in each state of the machines.
const RETURNS: u64 = 3;
/// Time for tickets that were sent to arrive.
const TICKETS: Duration = Duration::from_millis(40);

/// Counters of all clients.
#[derive(Default)]
struct Returns {
    /// All returns, with rejected early data and without a ticket too.
    all: AtomicU64,
    /// Returns with accepted early data.
    accepted: AtomicU64,
    /// Returns with rejected early data.
    rejected: AtomicU64,
    /// Returns to another machine than the one that gave the ticket.
    elsewhere: AtomicU64,
}

/// Connects with a ticket if there is one, and asks for a file. Returns the machine, and the fate of early data there.
async fn connect(config: &ClientConfig, site: &Site) -> (usize, EarlyData) {
    let endpoint = Endpoint::client_for(site.address).unwrap();
    let connection = match endpoint.connect(config, site.address, "localhost").unwrap().into_early() {
        Ok(connection) => connection,
        Err(connecting) => connecting.await.unwrap(),
    };
    let mut h3 = h3_quic::client::begin(connection.clone()).await.unwrap();
    let first = machine(&mut h3).await;
    connection.established().await.unwrap();
    // Its response leaves after the tickets, however busy the machine is.
    assert_eq!(machine(&mut h3).await, first);
    tokio::time::sleep(TICKETS).await;
    (first, connection.early_data())
}

/// Comes back until it is told to stop, by each load balancer in turn.
async fn come_back(sites: Vec<Site>, stop: Arc<AtomicBool>, returns: Arc<Returns>) {
    let root = sites[0].certificate().to_vec();
    let tls = RustlsClient::builder().roots([root]).alpn("h3").early_data(true).build().unwrap();
    let profile = Profile { handshake_timeout: LIMIT, ..Profile::default() };
    let config = ClientConfig::new(Arc::new(tls), Arc::new(profile));
    let (mut last, _) = connect(&config, &sites[0]).await;
    for site in sites.iter().cycle().skip(1) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (machine, early) = connect(&config, site).await;
        returns.accepted.fetch_add((early == EarlyData::Accepted).into(), Ordering::Relaxed);
        returns.rejected.fetch_add((early == EarlyData::Rejected).into(), Ordering::Relaxed);
        returns.elsewhere.fetch_add((machine != last).into(), Ordering::Relaxed);
        returns.all.fetch_add(1, Ordering::Relaxed);
        last = machine;
    }
}

/// Lets the load balancers take these machines, of which some drain, and waits for `more` returns.
async fn change(
    farm: &Farm,
    balancers: &mut [Balancer],
    all: &[usize],
    drained: &[usize],
    returns: &Returns,
    more: u64,
) {
    farm.configure(all, drained);
    for balancer in balancers {
        assert_eq!(balancer.reload(), "the new configuration is in use");
    }
    let (begun, before) = (Instant::now(), returns.all.load(Ordering::Relaxed));
    while returns.all.load(Ordering::Relaxed) < before + more {
        assert!(begun.elapsed() < LIMIT, "clients do not return");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_clients_use_early_data_while_machines_are_added_and_drained() {
    let (clients, rounds) = (number("BALANCE_CONNECTIONS", 4), number("BALANCE_ROUNDS", 2));
    let mut farm = Farm::with_early_data("returning", 2);
    farm.configure(&[1, 2], &[]);
    let mut balancers = [farm.balancer(), farm.balancer()];
    let sites: Vec<Site> = balancers.iter().map(|balancer| farm.site(balancer)).collect();
    let (stop, returns) = (Arc::new(AtomicBool::new(false)), Arc::new(Returns::default()));
    let mut coming: JoinSet<()> =
        (0..clients).map(|_| come_back(sites.clone(), stop.clone(), returns.clone())).collect();
    let more = clients * RETURNS;
    change(&farm, &mut balancers, &[1, 2], &[], &returns, more).await;
    for round in 1..=usize::try_from(rounds).unwrap() {
        // The newest machine has given no ticket yet; the oldest one drains, and ends when no load balancer knows it.
        let (oldest, middle, newest) = (round, round + 1, round + 2);
        farm.add_machine();
        change(&farm, &mut balancers, &[oldest, middle, newest], &[], &returns, more).await;
        change(&farm, &mut balancers, &[oldest, middle, newest], &[oldest], &returns, more).await;
        change(&farm, &mut balancers, &[middle, newest], &[], &returns, more).await;
        signal(farm.machines[oldest - 1].gateway.id(), "TERM");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = coming.join_next().await {
        ended.unwrap();
    }
    let Returns { all, accepted, rejected, elsewhere } = &*returns;
    let [all, accepted, rejected, elsewhere] =
        [all, accepted, rejected, elsewhere].map(|count| count.load(Ordering::Relaxed));
    println!("measured returns: {all}");
    println!("measured returns to another machine: {elsewhere}");
    println!("measured returns with rejected early data: {rejected}");
    println!("measured share with early data: {}", accepted as f64 / all as f64);
    assert!(elsewhere * 5 > all, "{elsewhere} of {all} at another machine");
    assert!(accepted as f64 >= 0.97 * all as f64, "{accepted} of {all}, {rejected} rejected");
}
