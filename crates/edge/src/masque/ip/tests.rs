//! Tunnels of a proxy whose device is a socket of the test.

use std::os::{fd::OwnedFd, unix::net::UnixDatagram};

use h3_quic::capsule::{self, Capsules};
use http::Method;
use tiderace::{ConnectionBudget, ProcessBudget};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    super::{clients::NoPlace, udp::End},
    *,
};
use crate::{
    client_certificate::ClientCertificate,
    config::{Many, Span},
};

const TARGET: [u8; 4] = [93, 184, 216, 34];

/// Answers each look-up with these addresses.
struct Answers(Option<Vec<IpAddr>>);

impl Resolve for Answers {
    fn resolve(&self, _: &str, port: u16) -> resolve::Lookup<'_> {
        let answer = self.0.clone().map(|list| list.into_iter().map(|address| (address, port).into()).collect());
        Box::pin(async move { answer.ok_or_else(|| io::Error::other("no such name")) })
    }
}

/// A proxy, and the kernel's end of its device.
fn proxy(answers: Option<&[&str]>) -> (IpProxy, UnixDatagram) {
    let (kernel, device) = UnixDatagram::pair().unwrap();
    let device = tun::Device::from_file(OwnedFd::from(device).into(), "test".to_owned()).unwrap();
    let device = Arc::new(TunDevice::begin(device).unwrap());
    let addresses = Many(["10.89.0.0/16", "fd00:89::/64"].map(str::to_owned).to_vec());
    let config = config::IpProxy { addresses, open: true, idle_timeout: Span::secs(120), ..config::IpProxy::default() };
    let limits = ClientLimits { total: 10, tunnels: 10, opened_per_second: 10, bytes_per_second: None };
    let proxy = IpProxy {
        template: Template::for_server("/ip/{target}/{ipproto}/").unwrap(),
        access: Access::Open,
        rules: Arc::new(Rules::new(&config.allow, &config.deny, &config.deny_ports)),
        limits,
        resolver: Box::new(Answers(answers.map(|list| list.iter().map(|text| text.parse().unwrap()).collect()))),
        clients: Arc::default(),
        listeners: Arc::default(),
        metrics: Arc::default(),
        devices: Arc::default(),
        pools: config.pools(),
        device: Mutex::new(Some(device)),
        config,
    };
    (proxy, kernel)
}

fn place(proxy: &IpProxy) -> Result<TunnelPlace, NoPlace> {
    proxy.clients.enter(ClientKey::Address(1), proxy.limits, Instant::now())
}

fn peer(memory: &ConnectionBudget) -> Peer {
    super::super::tests::peer(memory)
}

async fn open(proxy: &IpProxy, scope: &str, memory: &ConnectionBudget) -> Result<(IpTunnel, Charge), Refusal> {
    let scope = Scope { target: h3_quic::connect_ip::ScopeTarget::parse(scope).unwrap(), protocol: None };
    let charge = memory.charge(TUNNEL).unwrap();
    let admitted = Admitted { scope, user: None, place: place(proxy).unwrap(), charge };
    proxy.open(admitted, None, &peer(memory)).await
}

fn budget() -> ConnectionBudget {
    ConnectionBudget::new(1 << 20, &ProcessBudget::default())
}

/// RFC 9484 §4.1 MUST-3, MUST-4, RFC 9484 §4.6 SHOULD-1
#[tokio::test]
async fn a_name_is_resolved_before_the_answer() {
    let (proxy, _kernel) = proxy(Some(&["93.184.216.34", "10.0.0.1", "2a00:1450::34", "93.184.216.35"]));
    let memory = budget();
    let (tunnel, _charge) = open(&proxy, "a.example", &memory).await.unwrap_or_else(|why| panic!("{why:?}"));
    let routes: Vec<String> = tunnel.policy.routes.0.iter().map(|range| range.start.to_string()).collect();
    assert_eq!(routes, ["93.184.216.34", "93.184.216.35", "2a00:1450::34"], "all that the rules permit");
    let (without, _kernel) = self::proxy(None);
    let refusal = open(&without, "a.example", &memory).await.err().unwrap();
    assert_eq!(refusal, Refusal::Dns("no such name".to_owned()));
    let (empty, _kernel) = self::proxy(Some(&[]));
    assert!(matches!(open(&empty, "a.example", &memory).await, Err(Refusal::Dns(_))));
}

/// RFC 9484 §4.1 MUST-5: addresses and routes stay as long as the stream, and addresses are free behind it.
#[tokio::test]
async fn an_address_is_kept_until_the_tunnel_ends() {
    let (proxy, kernel) = proxy(None);
    let memory = budget();
    let (tunnel, charge) = open(&proxy, "*", &memory).await.unwrap_or_else(|why| panic!("{why:?}"));
    let addresses = tunnel.lease.addresses().to_vec();
    let device = proxy.device().unwrap();
    let (client, mut far_end) = tokio::io::duplex(10_000);
    let carrying = tokio::spawn(tunnel.over_stream(client, charge));
    // A packet of the target comes through.
    let [IpAddr::V4(own), IpAddr::V6(_)] = addresses[..] else { panic!("{addresses:?}") };
    let packet = packet_to(own.into());
    kernel.send(&packet).unwrap();
    let mut capsules = Capsules::new(10_000);
    let mut buffer = [0; 1_000];
    loop {
        let length = far_end.read(&mut buffer).await.unwrap();
        capsules.push(&buffer[..length]);
        let mut found = std::iter::from_fn(|| capsules.take().unwrap());
        if found.any(|found| found.ty == capsule::DATAGRAM && found.value[1..] == packet) {
            break;
        }
    }
    assert!(addresses.iter().all(|address| device.is_leased(*address)));
    far_end.shutdown().await.unwrap();
    assert!(matches!(carrying.await.unwrap(), End::Client));
    assert!(!addresses.iter().any(|address| device.is_leased(*address)));
}

/// A packet of the target to an address.
fn packet_to(address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("an address of IPv6") };
    let head = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    [&head[..], &TARGET, &address.octets(), &[0, 53, 1, 1, 0, 8, 0, 0]].concat()
}

fn traffic() -> Arc<Traffic> {
    Arc::new(Traffic::new(TunnelKind::Ip, String::new(), String::new(), None, &Arc::default()))
}

/// Three processes, one after the other, as in two upgrades, and then the last one is gone.
#[tokio::test]
async fn packets_find_the_process_that_has_their_tunnel() {
    let pool: Prefix = "10.89.0.0/29".parse().unwrap();
    let memory = budget();
    let (kernel, file) = UnixDatagram::pair().unwrap();
    let file = tun::Device::from_file(OwnedFd::from(file).into(), "test".to_owned()).unwrap();
    let mut processes = vec![Arc::new(TunDevice::begin(file).unwrap())];
    let mut tunnels = Vec::new();
    for number in 0..3 {
        if number > 0 {
            let older = &processes[number - 1];
            let mut descriptors = older.offer().unwrap().into_iter();
            let file = descriptors.next().unwrap().into();
            let packets: Vec<_> = descriptors.map(UnixDatagram::from).collect();
            assert_eq!(packets.len(), number, "a socket to each older process");
            let newer = TunDevice::take_over("test", OfferedDevice { file, packets }).unwrap();
            newer.set_older(older.pause());
            assert!(older.lease(&[pool]).is_none() && older.is_handed_over(), "the newer process gives addresses");
            newer.start().unwrap();
            processes.push(Arc::new(newer));
        }
        let lease = processes[number].lease(&[pool]).unwrap();
        let waiting = lease.packets(&memory, &traffic());
        tunnels.push((lease, waiting));
    }
    let addresses: Vec<IpAddr> = tunnels.iter().map(|(lease, _)| lease.addresses()[0]).collect();
    assert!(addresses[0] != addresses[1] && addresses[1] != addresses[2] && addresses[0] != addresses[2]);
    for (address, (_, waiting)) in addresses.iter().zip(&mut tunnels) {
        kernel.send(&packet_to(*address)).unwrap();
        assert_eq!(waiting.recv().await.unwrap().packet, packet_to(*address));
    }
    // Of five addresses two are left while the older processes are there.
    let more = [processes[2].lease(&[pool]), processes[2].lease(&[pool]), processes[2].lease(&[pool])];
    assert_eq!(more.iter().filter(|lease| lease.is_some()).count(), 2);
    drop(more);
    let (first, _) = tunnels.remove(0);
    drop((first, processes.remove(0)));
    // The thread of the first process closes its socket when it ends.
    let begun = std::time::Instant::now();
    loop {
        let leases: Vec<_> = std::iter::from_fn(|| processes[1].lease(&[pool])).collect();
        if leases.len() == 3 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{} addresses are free", leases.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The newest process is gone: the one before reads the device again.
    let last = tunnels.pop().unwrap();
    drop((last, processes.pop()));
    processes[0].resume();
    let (address, waiting) = (addresses[1], &mut tunnels[0].1);
    loop {
        kernel.send(&packet_to(address)).unwrap();
        // The thread of the other process may have taken one.
        if let Ok(found) = tokio::time::timeout(Duration::from_millis(200), waiting.recv()).await {
            assert_eq!(found.unwrap().packet, packet_to(address));
            break;
        }
    }
    assert!(processes[0].lease(&[pool]).is_some());
}

/// RFC 9484 §4.1 MUST-6
#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_ends_with_its_stream() {
    let (proxy, _kernel) = proxy(None);
    let memory = budget();
    let (tunnel, charge) = open(&proxy, "*", &memory).await.unwrap_or_else(|why| panic!("{why:?}"));
    let (client, mut far_end) = tokio::io::duplex(10_000);
    let begun = Instant::now();
    assert!(matches!(tunnel.over_stream(client, charge).await, End::Idle));
    assert!(begun.elapsed() >= proxy.config.idle_timeout.0);
    let mut introduction = Vec::new();
    far_end.read_to_end(&mut introduction).await.unwrap();
    assert!(!introduction.is_empty(), "addresses and routes, and then the end");
    assert_eq!(memory.held(), 0);
}

/// RFC 9484 §4.1 MUST-1, MUST-2, RFC 9484 §11 SHOULD-1
#[tokio::test]
async fn requests_are_judged_by_token_and_template() {
    let (mut proxy, _kernel) = proxy(None);
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "alice 0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    proxy.access = Access::new(tokens.to_str().unwrap(), &[]).unwrap();
    let memory = budget();
    let asked = SwitchRequest { form: crate::upstream::switch::SwitchForm::Connect, protocol: PROTOCOL.to_owned() };
    let admit = |path: &str, token: &str, asked: &SwitchRequest| {
        let request = Request::builder().method(Method::CONNECT).uri(format!("https://proxy.example{path}"));
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.body(crate::body::full("")).unwrap();
        proxy.admit(&request, Some(asked), &peer(&memory)).map(|admitted| admitted.scope.to_string())
    };
    let token = "0123456789abcdef";
    assert_eq!(admit("/ip/192.0.2.0%2F24/17/", token, &asked), Ok("192.0.2.0/24 (protocol 17)".to_owned()));
    assert_eq!(admit("/ip/*/*/", "0123456789abcdeF", &asked), Err(Refusal::Unauthorized));
    for path in ["/ip/192.0.2.1%2F24/*/", "/ip/*/256/", "/ip/a%20b/*/", "/ip/*/", "/other"] {
        let refusal = admit(path, token, &asked).unwrap_err();
        assert!(matches!(refusal, Refusal::Malformed(_)), "{path}: {refusal:?}");
        assert_eq!(refusal.response(false).status(), 400);
    }
    let udp = SwitchRequest { protocol: "connect-udp".to_owned(), ..asked.clone() };
    assert!(matches!(admit("/ip/*/*/", token, &udp), Err(Refusal::Malformed(_))));
}

#[tokio::test]
async fn a_certificate_gives_access_in_place_of_a_token() {
    let (mut proxy, _kernel) = proxy(None);
    proxy.access = Access::new("", &["subject:CN=alice".to_owned()]).unwrap();
    let memory = budget();
    let asked = SwitchRequest { form: crate::upstream::switch::SwitchForm::Connect, protocol: PROTOCOL.to_owned() };
    let admit = |subject: Option<&str>| {
        let request = Request::builder().method(Method::CONNECT).uri("https://proxy.example/ip/*/*/");
        let request = request.body(crate::body::full("")).unwrap();
        let certificate = subject.map(|subject| {
            let subject = Some(subject.to_owned());
            Arc::new(ClientCertificate { fingerprint: "0".repeat(64), subject, names: Vec::new() })
        });
        let peer = Peer { certificate, ..peer(&memory) };
        proxy.admit(&request, Some(&asked), &peer).map(|admitted| admitted.user.map(|user| user.to_string()))
    };
    assert_eq!(admit(Some("CN=alice")), Ok(Some("CN=alice".to_owned())));
    for other in [Some("CN=bob"), None] {
        let refusal = admit(other).unwrap_err();
        assert_eq!((&refusal, refusal.response(false).status().as_u16()), (&Refusal::Certificate, 403));
    }
}
