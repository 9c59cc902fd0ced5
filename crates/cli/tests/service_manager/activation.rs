//! Socket activation: sockets that outlive the gateway.

use std::{
    fs::{self, File},
    io::Read,
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, net::UnixListener},
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use crate::{
    clients::{Site, content, get, get1},
    fleet::{Fleet, LIMIT, give, is_running, signal},
    gateway::{Gateway, edge},
    scratch::{Program, Scratch},
    unit::{Unit, bound, descriptors, other_sockets, started_with, waiting},
};

/// A variable in the environment of a process, as it was at its start.
fn has_variable(pid: u32, name: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .unwrap()
        .split(|byte| *byte == 0)
        .any(|one| one.starts_with(name.as_bytes()))
}

/// Requests of new clients over HTTP/3, HTTP/2 and HTTP/1.1.
async fn ask(site: &Site) {
    for _ in 0..4 {
        let (_endpoint, mut h3) = site.h3().await;
        assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    }
    assert_eq!(content(site.h2().await.send_request(get("small")).await.unwrap()).await, "small");
    assert_eq!(content(site.h1().await.send_request(get1("small")).await.unwrap()).await, "small");
}

async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_come_while_no_process_runs_are_served_by_the_next_one() {
    let unit = Unit::open(2);
    let port = unit.address.port();
    let mut fleet = unit.fleet("activation", "");
    assert_eq!(fleet.address, unit.address);
    let site = Site::of(&fleet);
    let first = fleet.first_id();
    // The sockets themselves, and none beside them; other programs do not get them, and no call blocks.
    assert_eq!(waiting(port).len(), 2, "UDP sockets at the port");
    for inode in unit.inodes() {
        let open = descriptors(first, &inode);
        assert!(!open.is_empty(), "{inode} is not open");
        for descriptor in open {
            let about = fs::read_to_string(format!("/proc/{first}/fdinfo/{descriptor}")).unwrap();
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert_eq!(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK), libc::O_CLOEXEC | libc::O_NONBLOCK, "{about}");
        }
    }
    ask(&site).await;
    let is_steered = fleet.status()["kernel_steering"]["on"].clone();

    signal(first, "KILL");
    fleet.wait_for_end(first);
    TcpStream::connect(unit.address).expect("the kernel takes connections");
    let [h3, h1] = [true, false].map(|is_h3| {
        let site = site.clone();
        tokio::spawn(async move {
            match is_h3 {
                true => {
                    let (_endpoint, mut h3) = site.h3().await;
                    content(h3.send(get("small")).await.unwrap()).await
                }
                false => content(site.h1().await.send_request(get1("small")).await.unwrap()).await,
            }
        })
    });
    wait_for("an Initial waits", || waiting(port).iter().sum::<u64>() > 0).await;
    assert!(!h3.is_finished() && !h1.is_finished());
    let second = unit.start(&fleet.file);
    fleet.note(second.id());
    assert_eq!(h3.await.unwrap(), "small");
    assert_eq!(h1.await.unwrap(), "small");
    ask(&site).await;
    // The group has the program of the process that was killed; its table has these sockets.
    assert_eq!(fleet.status()["kernel_steering"]["on"], is_steered, "{}", fleet.status());

    // An upgrade hands the sockets on.
    let (_endpoint, mut before) = site.h3().await;
    assert_eq!(content(before.send(get("small")).await.unwrap()).await, "small");
    let (_, third) = fleet.upgrade();
    assert!(has_variable(second.id(), "LISTEN_FDS="));
    for variable in ["LISTEN_PID=", "LISTEN_FDS=", "LISTEN_FDNAMES="] {
        assert!(!has_variable(third, variable), "{variable}");
    }
    for inode in unit.inodes() {
        assert!(!descriptors(third, &inode).is_empty(), "{inode} is not open");
    }
    ask(&site).await;
    assert_eq!(content(before.send(get("small")).await.unwrap()).await, "small");
    drop((before, _endpoint));
    fleet.wait_for_end(second.id());

    // And after all of them have ended, the sockets still take clients.
    signal(third, "TERM");
    fleet.wait_for_end(third);
    let stream = TcpStream::connect(unit.address);
    assert!(stream.is_ok(), "{stream:?}");
    let fourth = unit.start(&fleet.file);
    fleet.note(fourth.id());
    ask(&site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_sockets_join_those_of_the_same_user() {
    let unit = Unit::open(1);
    let mut fleet = unit.fleet("activation-join", "");
    let site = Site::of(&fleet);
    assert_eq!(fleet.status()["sockets"], 2, "{}", fleet.status());
    assert_eq!(waiting(unit.address.port()).len(), 2);
    ask(&site).await;
    fleet.set_workers(3);
    fleet.upgrade();
    assert_eq!(fleet.status()["sockets"], 3, "{}", fleet.status());
    ask(&site).await;
}

/// Time limit for a program that has only to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// User and group `nobody`.
const NOBODY: u32 = 65_534;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_privilege_serves_on_sockets_of_root() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: it needs root");
        return;
    }
    let unit = Unit::open(2);
    let before = format!(
        "setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all --ambient-caps=-all --no-new-privs --"
    );
    let mut fleet = Fleet::run("activation-nobody", ["", ""], |config| {
        unit.configure(config);
        let text = fs::read_to_string(config).unwrap();
        fs::write(config, text.replace("workers = 2", "workers = 3")).unwrap();
        let program = config.with_file_name("tiderace");
        fs::copy(env!("CARGO_BIN_EXE_tiderace"), &program).unwrap();
        give(config.parent().unwrap(), NOBODY);
        let errors = File::create(config.with_file_name("errors")).unwrap();
        let mut command = unit.command(&before, program.to_str().unwrap(), config);
        command.stderr(errors);
        Gateway::started(command)
    });
    let site = Site::of(&fleet);
    let errors = fs::read_to_string(fleet.folder.0.join("errors")).unwrap();
    assert!(errors.contains("2 of 3 workers have UDP sockets"), "{errors}");
    assert!(errors.contains("write ListenDatagram= 3 times, with ReusePort=yes"), "{errors}");
    let check = |fleet: &Fleet| {
        let status = fleet.status();
        assert_eq!((&status["workers"], &status["sockets"]), (&3.into(), &2.into()), "{status}");
        assert_eq!(status["kernel_steering"]["reason"], "another user has opened the sockets", "{status}");
    };
    check(&fleet);
    ask(&site).await;
    // Connections over UDP and TCP last, and nobody tries to add a socket.
    let (_endpoint, mut h3) = site.h3().await;
    fleet.upgrade();
    check(&fleet);
    ask(&site).await;
    assert_eq!(content(h3.send(get("small")).await.unwrap()).await, "small");
    assert_eq!(waiting(unit.address.port()).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_without_a_socket_are_opened_at_the_start_and_by_a_reload() {
    serve_beside_own_sockets(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_without_a_socket_are_opened() {
    serve_beside_own_sockets(0).await;
}

/// Serves on a TCP socket, on this number of UDP sockets at its address, and on one for plain HTTP, and opens what is missing.
async fn serve_beside_own_sockets(udp: usize) {
    let unit = Unit::open(udp);
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let (other, _) = other_sockets();
    let redirecting = plain.local_addr().unwrap();
    let other_address = other.local_addr().unwrap();
    drop(other);
    let unit = Unit { sockets: unit.sockets.into_iter().chain([plain.into()]).collect(), ..unit };
    let fleet = unit.fleet(&format!("activation-parts-{udp}"), &format!("redirect-from = \"{redirecting}\"\n"));
    let site = Site::of(&fleet);
    ask(&site).await;
    // A reload adds an address, and leaves those of the service manager as they are.
    let text = fs::read_to_string(&fleet.file).unwrap();
    let listen = format!("listen = \"{}\"", unit.address);
    let both = format!("listen = [\"{}\", \"{other_address}\"]", unit.address);
    assert!(text.contains(&listen), "{text}");
    fs::write(&fleet.file, text.replace(&listen, &both)).unwrap();
    let output = edge("reload", &fleet.file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ask(&site).await;
    ask(&site.at(other_address)).await;
    let (sender, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(
        tokio::net::TcpStream::connect(redirecting).await.unwrap(),
    ))
    .await
    .unwrap();
    tokio::spawn(connection);
    let mut sender = sender;
    let response = sender.send_request(get1("small")).await.unwrap();
    assert_eq!(response.status(), 308);
    // Another one takes the address of the service manager away, which keeps its sockets.
    let (_endpoint, h3) = site.h3().await;
    let other = format!("listen = \"{other_address}\"");
    fs::write(&fleet.file, text.replace(&listen, &other)).unwrap();
    let output = edge("reload", &fleet.file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ask(&site.at(other_address)).await;
    TcpStream::connect(unit.address).expect("the socket of the service manager");
    // The connection over QUIC drains: it ends after its requests.
    wait_for("the connection ends", || !h3.is_open()).await;
}

/// Folder with the configuration of a gateway with two workers at this address.
fn site(name: &str, address: &str) -> (Scratch, PathBuf) {
    let folder = Scratch::new(name);
    folder.certificate("localhost");
    let config = folder.0.join("edge.toml");
    let rest = "certificate = \"cert.pem\"\nkey = \"key.pem\"\nworkers = 2\n[[route]]\nfiles = \".\"\n";
    fs::write(&config, format!("listen = \"{address}\"\n{rest}")).unwrap();
    (folder, config)
}

/// Runs a gateway that has to refuse its sockets; what it says.
fn refused(command: &mut Command) -> String {
    let mut program = Program(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let begun = Instant::now();
    let status = loop {
        match program.0.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(begun.elapsed() < PATIENCE, "it serves"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    said
}

#[test]
fn sockets_that_cannot_be_used_are_refused() {
    let unit = Unit::open(3);
    let (folder, config) = site("activation-refused", &unit.address.to_string());
    let program = env!("CARGO_BIN_EXE_tiderace");
    let (other_tcp, other_udp) = other_sockets();
    let [tcp_at, udp_at] = [other_tcp.local_addr().unwrap(), other_udp.local_addr().unwrap()];
    let unix = UnixListener::bind(folder.0.join("unix")).unwrap();
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
    connected.connect(udp_at).unwrap();
    let address = unit.address;
    for (sockets, error, hint) in [
        (
            vec![OwnedFd::from(other_tcp)],
            format!(
                "descriptor 3 (unknown) of the service manager is for TCP at {tcp_at}, which is not in the configuration ({address})"
            ),
            "ListenStream= of the socket unit",
        ),
        (
            vec![other_udp.into()],
            format!("is for UDP at {udp_at}, which is not in the configuration ({address})"),
            "ListenDatagram= of the socket unit",
        ),
        (vec![unix.into()], "is a socket without an IP address".to_owned(), "ListenStream="),
        (vec![silent.into()], "is a TCP socket that does not listen".to_owned(), "Accept=no"),
        (vec![connected.into()], "is a UDP socket that is connected to one client".to_owned(), "ListenDatagram="),
        (vec![File::open("/dev/null").unwrap().into()], "is no socket".to_owned(), "ListenStream="),
    ] {
        let said = refused(&mut Unit { address, sockets }.command("", program, &config));
        assert!(said.starts_with("error: ") && said.contains(&error), "{said}");
        assert!(said.contains("hint: ") && said.contains(hint), "{said}");
    }
    let said = refused(&mut unit.command("", program, &config));
    assert!(said.contains(&format!("3 UDP sockets at {address}, and at most 2 can be used")), "{said}");
    assert!(said.contains("hint: write ListenDatagram= for each worker, 2 times"), "{said}");
    // SO_REUSEADDR alone: the last one gets all packets.
    drop(unit);
    let unshared = (0..2).map(|_| bound(Type::DGRAM, address, false).unwrap().into()).collect();
    let said = refused(&mut Unit { address, sockets: unshared }.command("", program, &config));
    assert!(said.contains("without SO_REUSEPORT") && said.contains("hint: ReusePort=yes"), "{said}");

    let listening = (0..3).map(|_| {
        let socket = bound(Type::STREAM, address, true).unwrap();
        socket.listen(1).unwrap();
        socket.into()
    });
    let said = refused(&mut Unit { address, sockets: listening.collect() }.command("", program, &config));
    assert!(said.contains(&format!("3 TCP sockets at {address}, and at most 2 can be used")), "{said}");
    assert!(said.contains("hint: write ListenStream= once"), "{said}");

    let udp = bound(Type::DGRAM, address, true).unwrap();
    let unit = Unit { address, sockets: vec![udp.into()] };
    for (variable, value, error) in [
        ("LISTEN_FDS", "nonsense", "invalid LISTEN_FDS"),
        ("LISTEN_FDS", "-1", "invalid LISTEN_FDS"),
        ("LISTEN_FDS", "4294967295", "fd count overflowed"),
        ("LISTEN_FDS", "2", "Bad file descriptor"),
        ("LISTEN_FDNAMES", "one:two", "invalid LISTEN_FDNAMES"),
    ] {
        let said = refused(unit.command("", program, &config).env(variable, value));
        assert!(said.contains(&format!("the sockets of the service manager cannot be taken: {error}")), "{said}");
        assert!(said.contains("hint: LISTEN_FDS is the number of open descriptors"), "{said}");
    }
    let mut wrong = started_with(&unit.sockets, "LISTEN_PID=nonsense exec \"$@\"", &config);
    let said = refused(wrong.args(["sh", program, "edge", "run", "--config"]).arg(&config).env("LISTEN_FDS", "1"));
    assert!(said.contains("invalid LISTEN_PID"), "{said}");
}

#[test]
fn sockets_of_another_process_are_ignored() {
    let unit = Unit::open(1);
    let (_folder, config) = site("activation-ignored", "127.0.0.1:0");
    // A shell whose child is the gateway: the variables are for the shell.
    let mut command = started_with(&unit.sockets, "export LISTEN_PID=$$; \"$@\" & wait", &config);
    command.args(["sh", env!("CARGO_BIN_EXE_tiderace"), "edge", "run", "--config"]).arg(&config);
    command.envs([("LISTEN_FDS", "nonsense"), ("LISTEN_FDNAMES", "one:two:three")]);
    let gateway = Gateway::started(command);
    assert_ne!(gateway.address, unit.address);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", gateway.id())).unwrap();
    for child in children.split_whitespace().map(|pid| pid.parse().unwrap()) {
        signal(child, "TERM");
        while is_running(child) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
