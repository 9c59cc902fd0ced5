//! Targets by name, with a resolver of the test.

use std::sync::{Mutex, PoisonError};

use super::{clients::NoPlace, *};
use tiderace::{ConnectionBudget, ProcessBudget};

use crate::{
    config::{Many, Span},
    ending::{BodyError, Cause},
};

/// Answers with the next of its answers each time it is asked.
struct Answers(Arc<Mutex<Vec<Vec<SocketAddr>>>>);

impl Resolve for Answers {
    fn resolve(&self, _: &str, _: u16) -> resolve::Lookup<'_> {
        let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Box::pin(async move { answer.ok_or_else(|| io::Error::other("asked once too often")) })
    }
}

/// Never answers.
struct Silence;

impl Resolve for Silence {
    fn resolve(&self, _: &str, _: u16) -> resolve::Lookup<'_> {
        Box::pin(std::future::pending())
    }
}

fn proxy(allow: &[&str], resolver: impl Resolve + 'static) -> Proxy {
    let allow = Many(allow.iter().map(|text| (*text).to_owned()).collect());
    let config = config::Proxy { allow, open: true, connect_timeout: Span::secs(5), ..config::Proxy::default() };
    let route = config::Route { path: "/udp".to_owned(), ..config::Route::default() };
    let metrics = Arc::new(Metrics::default());
    let proxy = Proxy::new(&route, &config, &Arc::default(), &Arc::default(), &metrics).unwrap();
    Proxy { resolver: Box::new(resolver), ..proxy }
}

fn place(proxy: &Proxy) -> TunnelPlace {
    proxy.clients.enter(ClientKey::Address(1), proxy.limits, Instant::now()).unwrap()
}

async fn open(proxy: &Proxy, kind: TunnelKind, host: &str, port: u16) -> Result<Tunnel, Refusal> {
    proxy.open(kind, host, port, None, place(proxy)).await
}

fn answers(list: &[&[SocketAddr]]) -> (Answers, Arc<Mutex<Vec<Vec<SocketAddr>>>>) {
    let list = Arc::new(Mutex::new(list.iter().rev().map(|answer| answer.to_vec()).collect::<Vec<_>>()));
    (Answers(list.clone()), list)
}

/// RFC 9298 §3.1 MUST-1: a name that is public when it is judged and private when it is connected to (DNS rebinding): there is one look-up, and the address
/// that was judged is connected to.
#[tokio::test]
async fn a_name_that_changes_its_address_leads_to_the_one_that_was_judged() {
    for kind in [TunnelKind::Udp, TunnelKind::Tcp] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let judged = listener.local_addr().unwrap();
        let private: SocketAddr = "10.0.0.1:443".parse().unwrap();
        let (resolver, left) = answers(&[&[private, judged], &[private], &[private]]);
        let proxy = proxy(&["127.0.0.1"], resolver);
        let tunnel =
            open(&proxy, kind, "rebinding.example", judged.port()).await.unwrap_or_else(|why| panic!("{why:?}"));
        assert_eq!(tunnel.traffic().address, judged.to_string());
        assert_eq!(left.lock().unwrap().len(), 2, "looked up once");
        let connected = match tunnel {
            Tunnel::Udp(tunnel) => tunnel.socket.peer().unwrap(),
            Tunnel::Tcp(tunnel) => tunnel.target.peer_addr().unwrap(),
            Tunnel::BoundUdp(_) | Tunnel::Ip(_) => panic!("a tunnel of another kind"),
        };
        assert_eq!(connected, judged);
        // The next request gets what the name leads to then, which is judged again.
        let refusal = open(&proxy, kind, "rebinding.example", judged.port()).await.err();
        assert_eq!(refusal, Some(Refusal::Prohibited(Prohibited::NotPublic)));
    }
}

#[tokio::test]
async fn names_and_addresses_of_this_machine_lead_nowhere() {
    let loopback: SocketAddr = "127.0.0.1:443".parse().unwrap();
    let mapped: SocketAddr = "[::ffff:127.0.0.1]:443".parse().unwrap();
    let (resolver, _) = answers(&[&[loopback, mapped], &[loopback], &[mapped]]);
    let proxy = proxy(&[], resolver);
    for host in [
        "a.example",
        "a.example",
        "a.example",
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "0.0.0.0",
        "::",
    ] {
        for kind in [TunnelKind::Udp, TunnelKind::Tcp] {
            if host == "a.example" && kind == TunnelKind::Tcp {
                continue;
            }
            let refusal = open(&proxy, kind, host, 443).await.err();
            assert_eq!(refusal, Some(Refusal::Prohibited(Prohibited::NotPublic)), "{host}");
        }
    }
}

/// RFC 9298 §7: also an address of this machine that the rules would permit.
#[tokio::test]
async fn the_gateway_s_own_addresses_are_found_by_the_way_there() {
    let own: SocketAddr = "127.0.0.1:443".parse().unwrap();
    let proxy = proxy(&["192.0.2.0/24"], Silence);
    assert_eq!(proxy.check_own(own, local_address_for(own)), Err(Prohibited::NotPublic));
    assert_eq!(proxy.check_own(own, Ok("192.0.2.1:1".parse().unwrap())), Ok(()));
    let allowed: SocketAddr = "192.0.2.1:443".parse().unwrap();
    assert_eq!(proxy.check_own(allowed, Ok(allowed)), Ok(()));
}

/// RFC 9298 §7: `allow` opens programs beside the gateway, and not the gateway.
#[tokio::test]
async fn an_allowed_network_does_not_open_the_gateway_s_own_listeners() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy(&["0.0.0.0/0"], Silence);
    for own in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("[::ffff:127.0.0.1]:{port}")] {
        proxy.listeners.set(vec![own.parse().unwrap()]);
        for kind in [TunnelKind::Udp, TunnelKind::Tcp] {
            for host in ["127.0.0.1", "0.0.0.0"] {
                let refusal = open(&proxy, kind, host, port).await.err();
                assert_eq!(refusal, Some(Refusal::Prohibited(Prohibited::Listener)), "{own} {kind:?} {host}");
            }
            assert!(open(&proxy, kind, "127.0.0.1", other.local_addr().unwrap().port()).await.is_ok(), "{own}");
        }
    }
}

/// RFC 9298 §3.1 MUST-2
#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_is_given_up() {
    let proxy = proxy(&[], Silence);
    assert_eq!(open(&proxy, TunnelKind::Udp, "a.example", 443).await.err(), Some(Refusal::DnsTimeout));
    let (resolver, _) = answers(&[&[]]);
    let Refusal::Dns(_) = open(&self::proxy(&[], resolver), TunnelKind::Udp, "a.example", 1).await.err().unwrap()
    else {
        panic!("a name without an address")
    };
}

/// RFC 9298 §3.1 MUST NOT-1, MUST-9, RFC 9298 §6.2 MUST-1, MUST-2
#[tokio::test]
async fn datagrams_of_targets_and_to_them_have_no_ecn_marks_and_no_fragments() {
    let target = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let state = quinn_udp::UdpSocketState::new((&target).into()).unwrap();
    target.set_nonblocking(false).unwrap();
    let socket = TargetSocket::connect(target.local_addr().unwrap()).await.unwrap();
    assert!(!socket.may_fragment());
    socket.try_send(b"up").unwrap();
    let (mut buffer, mut meta) = ([0; 100], [quinn_udp::RecvMeta::default()]);
    let length = state.recv((&target).into(), &mut [io::IoSliceMut::new(&mut buffer)], &mut meta).unwrap();
    assert_eq!((length, meta[0].len, meta[0].ecn), (1, 2, None));
    for ecn in [quinn_udp::EcnCodepoint::Ect0, quinn_udp::EcnCodepoint::Ce] {
        let marked = quinn_udp::Transmit {
            destination: meta[0].addr,
            ecn: Some(ecn),
            contents: b"down",
            segment_size: None,
            src_ip: None,
        };
        state.try_send((&target).into(), &marked).unwrap();
        socket.readable().await.unwrap();
        let mut got = Vec::new();
        socket.try_receive(|payload| got.push(payload.to_vec())).unwrap();
        assert_eq!(got, [b"down"]);
    }
}

/// RFC 9298 §3.1 MUST-7: the stream ends with the socket.
#[tokio::test(start_paused = true)]
async fn a_tunnel_without_traffic_ends() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    let proxy = proxy(&["127.0.0.1"], Silence);
    let budget = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
    for kind in [TunnelKind::Udp, TunnelKind::Tcp] {
        // The clock moves when nothing else does.
        let begun = Instant::now();
        let (client, mut far_end) = tokio::io::duplex(1_000);
        let limit = match open(&proxy, kind, "127.0.0.1", target.port()).await.unwrap_or_else(|why| panic!("{why:?}")) {
            Tunnel::Udp(tunnel) => {
                let end = tunnel.over_stream(client, budget.charge(TUNNEL).unwrap()).await;
                assert!(matches!(end, udp::End::Idle), "{end:?}");
                config::Proxy::default().idle_timeout.0
            }
            Tunnel::BoundUdp(_) | Tunnel::Ip(_) => panic!("a tunnel of another kind"),
            Tunnel::Tcp(tunnel) => {
                let error = tunnel.over_stream(client, &budget).await.unwrap_err();
                assert_eq!(Ending::of_content(&error), Ending::Idle);
                config::Proxy::default().tcp_idle_timeout.0
            }
        };
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
        let mut rest = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut far_end, &mut rest).await.unwrap();
        assert!(rest.is_empty());
    }
    assert_eq!(budget.held(), 0, "what was charged is given back");
}

/// RFC 9298 §3.1 SHOULD-1, RFC 9484 §4.1 SHOULD-1
#[test]
fn refusals_say_why() {
    for (refusal, is_connect, status, error) in [
        (Refusal::Unauthorized, false, 401, "http_request_denied"),
        (Refusal::Unauthorized, true, 407, "http_request_denied"),
        (Refusal::Malformed("x"), false, 400, "http_request_error"),
        (Refusal::Prohibited(Prohibited::NotPublic), false, 403, "destination_ip_prohibited"),
        (Refusal::Prohibited(Prohibited::Port), true, 403, "http_request_denied"),
        (Refusal::NoPlace(NoPlace::Rate), false, 429, "connection_limit_reached"),
        (Refusal::Dns("a \"b\" \u{e4}\n".to_owned()), false, 502, "dns_error"),
    ] {
        let response = refusal.response(is_connect);
        let said = response.headers()[PROXY_STATUS].to_str().unwrap().to_owned();
        assert_eq!(response.status().as_u16(), status);
        assert!(said.starts_with(&format!("tiderace; error={error}; details=\"")), "{said}");
        assert_eq!(said.matches('"').count(), 2, "{said}");
        // RFC 9297 §3.4 MUST NOT-1
        assert!(!response.headers().contains_key(CAPSULE_PROTOCOL));
    }
}

pub(super) fn peer(memory: &ConnectionBudget) -> Peer {
    Peer {
        proxy: None,
        certificate: None,
        remote: "198.51.100.1:1".parse().unwrap(),
        protocol: "h3",
        listener: "127.0.0.1:443".parse().unwrap(),
        tcp: None,
        is_first: false,
        alt_svc: None,
        quic: None,
        early: false,
        progress: None,
        memory: memory.clone(),
        cause: Cause::default(),
    }
}

#[tokio::test]
async fn tunnels_are_charged_to_the_connection_of_their_client() {
    let proxy = proxy(&[], Silence);
    let memory = ConnectionBudget::new(3 * TUNNEL + 1, &ProcessBudget::default());
    let peer = peer(&memory);
    let request = Request::connect("example.org:443").body(full("")).unwrap();
    let admit = || proxy.admit(TunnelKind::Tcp, &request, None, &peer);
    let admitted: Vec<Admitted> = (0..3).map(|_| admit().unwrap_or_else(|why| panic!("{why:?}"))).collect();
    assert_eq!(memory.held(), 3 * TUNNEL);
    assert_eq!(admit().err(), Some(Refusal::Memory));
    drop(admitted);
    assert_eq!(memory.held(), 0);
    assert!(admit().is_ok(), "the refused one has no tunnel that counts");
}

/// A target that sends without end to a client that reads nothing: what waits is bounded, and charged.
#[tokio::test]
async fn what_a_client_does_not_read_is_charged() {
    use http_body_util::{BodyExt as _, channel::Channel};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (resolver, _) = answers(&[]);
    let proxy = proxy(&["127.0.0.1"], resolver);
    let target = listener.local_addr().unwrap();
    let tunnel =
        open(&proxy, TunnelKind::Tcp, "127.0.0.1", target.port()).await.unwrap_or_else(|why| panic!("{why:?}"));
    let Tunnel::Tcp(tunnel) = tunnel else { panic!("a tunnel for TCP") };
    let (mut flood, _) = listener.accept().await.unwrap();
    let flooding = tokio::spawn(async move {
        let piece = vec![0; 64 * 1024];
        while tokio::io::AsyncWriteExt::write_all(&mut flood, &piece).await.is_ok() {}
    });
    let memory = ConnectionBudget::new(1 << 20, &ProcessBudget::default());
    let (mut answer, mut unread) = Channel::<bytes::Bytes, BodyError>::new(PARTS);
    let (silence, content) = Channel::<bytes::Bytes, BodyError>::new(1);
    let budget = memory.clone();
    let carrying = tokio::spawn(async move { tunnel.over_h3(content.boxed_unsync(), &mut answer, &budget).await });
    // All reads that can wait have the largest size in the end; those before it were smaller.
    let (mut waiting, most) = (0, (PARTS as u64 + 1) * 16 * 1024);
    while waiting < 10 * most as usize {
        let data = unread.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(
            data.len() as u64 * (PARTS as u64 + 1) <= memory.held(),
            "{} bytes, {} charged",
            data.len(),
            memory.held()
        );
        waiting += data.len();
    }
    assert_eq!(memory.held(), most);
    drop((silence, unread));
    assert!(carrying.await.unwrap().is_err());
    assert_eq!(memory.held(), 0);
    flooding.abort();
}
