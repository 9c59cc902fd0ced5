//! Runs in real time: workloads over the kernel's TCP and over our stack, on the same path. Where the system permits no emulated networks,
//! each test says so.
#![cfg(target_os = "linux")]

use core::ops::ControlFlow;
use std::{
    cell::RefCell,
    process::{Child, Command},
};

use emu::network::{DeviceKind, Network, NetworkConfig, Privilege};
use lab::{
    contender::Contender,
    figure::Figure,
    record::{Record, RunOutcome},
    scenario::{Scenario, parse},
    tiderace::contender,
};
use netem::LinkConfig;
use tiderace_live::{Conditions, Kernel, Sender, Watch, run_one, run_watched};
use units::{Duration, Seed};

#[test]
fn scenarios_for_real_time_can_be_run() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/real-time");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let scenario = parse(&std::fs::read_to_string(&path).unwrap(), &path.display().to_string()).unwrap();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        assert_eq!(scenario.name, format!("real-time-{stem}"));
        scenario.check().unwrap_or_else(|fault| panic!("{stem}: {fault:?}"));
        assert!(!scenario.contenders.stacks.is_empty(), "{stem} has nothing of the kernel's");
        for name in &scenario.contenders.stacks {
            Kernel::named(name).unwrap_or_else(|reason| panic!("{stem}: {reason}"));
        }
        Kernel::check(scenario.traffic.workload).unwrap();
        count += 1;
    }
    assert_eq!(count, 12);
}

/// The machine may be busy.
const CONDITIONS: Conditions = Conditions { accept_busy: true, device: None, repeats: 0 };

fn permitted() -> bool {
    permits(None)
}

fn permits(device: Option<DeviceKind>) -> bool {
    let network = Privilege::acquire().and_then(|_| {
        let (up, down) = (LinkConfig::default(), LinkConfig::default());
        Network::start(&NetworkConfig { device, ..NetworkConfig::new(up, down, Seed::from_number(1)) })
    });
    if let Err(error) = &network {
        eprintln!("not tested, since this system refuses: {error}");
    }
    network.is_ok()
}

fn scenario(traffic: &str) -> Scenario {
    let text = format!(
        r#"
        name = "live"
        title = "10 Mbit/s and 20 ms"
        about = "A test."
        [path.down]
        rate = "10 Mbit/s"
        queue = "50 kB"
        delay = "10 ms"
        [path.up]
        rate = "10 Mbit/s"
        queue = "50 kB"
        delay = "10 ms"
        [traffic]
        {traffic}
        [run]
        warmup = "500 ms"
        duration = "1500 ms"
        seeds = 1
        "#
    );
    parse(&text, "a test").unwrap()
}

/// A machine that is too busy makes figures useless, and no run: everything but its time has to be right.
fn completed(record: &Record) -> &Record {
    match &record.outcome {
        RunOutcome::Failed(reason) => {
            assert!(reason.starts_with("not to be trusted"), "{}: {reason}", record.contender.name);
        }
        RunOutcome::Valid => {}
    }
    assert!(record.real_time.is_some());
    record
}

fn value(record: &Record, figure: Figure) -> Option<f64> {
    record.figures.get(&figure).and_then(|reading| reading.value)
}

fn everybody() -> Vec<Box<dyn Contender>> {
    let mut all: Vec<Box<dyn Contender>> = ["kernel-cubic", "kernel-reno"]
        .into_iter()
        .map(|name| Box::new(Kernel::named(name).unwrap()) as Box<dyn Contender>)
        .collect();
    all.push(contender("cubic").unwrap());
    all
}

#[test]
fn bulk_in_both_directions() {
    for (device, direction) in [
        (DeviceKind::Tun, "download"),
        (DeviceKind::Tun, "upload"),
        (DeviceKind::Veth, "download"),
        (DeviceKind::Veth, "upload"),
    ] {
        if !permits(Some(device)) {
            continue;
        }
        let conditions = Conditions { device: Some(device), ..CONDITIONS };
        let scenario = scenario(&format!("workload = \"bulk\"\nconnections = 2\ndirection = \"{direction}\""));
        for contender in everybody() {
            let record = run_one(&scenario, contender.as_ref(), 1, conditions);
            let record = completed(&record);
            let machine = record.real_time.as_ref().unwrap();
            assert_eq!((machine.device.as_deref(), machine.device_drops), (Some(device.name()), 0));
            let goodput = value(record, Figure::Goodput).unwrap();
            // No more passes the link than its rate, and what waited in front of the window's begin: a queue of 50 kB, and a flight.
            assert!(goodput > 0.0 && goodput <= 10e6 + 8.0 * 100_000.0 / 1.5, "{direction} {goodput}");
            assert!(value(record, Figure::Cpu).unwrap() > 0.0);
            let kernel = Kernel::named(&record.contender.name).is_ok();
            // What the kernel does not tell is missing, and what only it tells is there.
            assert_eq!(value(record, Figure::RttP50).is_none(), kernel, "{}", record.contender.name);
            assert_eq!(value(record, Figure::SmoothedRtt).is_some(), kernel, "{}", record.contender.name);
            assert!(value(record, Figure::Retransmitted).is_some());
            for connection in &record.connections {
                // 10 ms each way: no sample can be shorter.
                assert!(connection.rtt_min.unwrap() >= 0.020, "{connection:?}");
                assert!(connection.handshake.unwrap() >= if kernel { 0.040 } else { 0.020 }, "{connection:?}");
            }
        }
    }
}

#[test]
fn requests_flows_pages_videos_and_feeds() {
    if !permitted() {
        return;
    }
    std::thread::scope(|scope| {
        for (traffic, figure) in [
            ("workload = \"requests\"\nconnections = 1\nstreams = 4\nresponse-size = \"20 kB\"", Figure::RequestRate),
            ("workload = \"page\"\nconnections = 1", Figure::Handshake),
            ("workload = \"video\"\nconnections = 1", Figure::VideoRate),
            ("workload = \"feed\"\nconnections = 1", Figure::RequestRate),
        ] {
            scope.spawn(move || {
                let scenario = scenario(traffic);
                for contender in everybody() {
                    let record = run_one(&scenario, contender.as_ref(), 1, CONDITIONS);
                    let seen = value(completed(&record), figure);
                    assert!(seen.is_some_and(|value| value > 0.0), "{traffic}, {}: {seen:?}", record.contender.name);
                }
            });
        }
    });
}

#[test]
fn a_run_is_shown_while_it_goes_on_and_can_be_broken_off() {
    if !permitted() {
        return;
    }
    let scenario = scenario("workload = \"bulk\"\nconnections = 2");
    let mut all = everybody();
    all.push(contender("bbr3").unwrap());
    for contender in all {
        let name = contender.identity().name;
        let looks = RefCell::new(Vec::<Vec<Option<Sender>>>::new());
        let see = |senders: &[Option<Sender>]| {
            looks.borrow_mut().push(senders.to_vec());
            ControlFlow::Continue(())
        };
        let watch = Watch { every: Duration::from_millis(100), see: &see };
        let record = run_watched(&scenario, contender.as_ref(), 1, CONDITIONS, &watch);
        completed(&record);
        let looks = looks.into_inner();
        // 2 s, and none of the looks comes before its time.
        assert!((2..=21).contains(&looks.len()), "{name}: {}", looks.len());
        let last: Vec<&Sender> = looks.last().unwrap().iter().flatten().collect();
        assert_eq!(last.len(), 2, "{name}");
        let kernel = Kernel::named(&name).is_ok();
        // Each sample once: some hundred a second of each connection, none shorter than the path, none for TCP.
        let rtts: Vec<Duration> =
            looks.iter().flatten().flatten().flat_map(|one| one.rtts.iter().flatten()).copied().collect();
        assert_eq!(rtts.is_empty(), kernel, "{name}");
        assert!(
            rtts.len() < 3_000 && rtts.iter().all(|rtt| *rtt >= Duration::from_millis(20)),
            "{name}: {}",
            rtts.len()
        );
        for sender in last {
            // 10 Mbit/s for 2 s are 2.5 MB; what was sent may wait in the queue of 50 kB, or be lost and not sent again yet.
            assert!((1..=3_000_000).contains(&sender.bytes.unwrap()), "{name}: {sender:?}");
            // 10 ms each way.
            assert!(sender.smoothed_rtt.unwrap() >= Duration::from_millis(20), "{name}: {sender:?}");
            assert!(sender.window.unwrap() > 0 && sender.packets_sent.unwrap() > 0, "{name}: {sender:?}");
            // The kernel tells no state; a delivery rate comes from it and from BBR.
            assert_eq!(sender.state.is_none(), kernel, "{name}: {sender:?}");
            assert_eq!(sender.delivery_rate.is_some(), kernel || name.contains("bbr"), "{name}: {sender:?}");
        }
        let broken = Watch { every: Duration::from_millis(100), see: &|_| ControlFlow::Break(()) };
        let record = run_watched(&scenario, contender.as_ref(), 1, CONDITIONS, &broken);
        assert_eq!(record.outcome, RunOutcome::Failed("the run was broken off".to_owned()), "{name}");
    }
}

#[test]
fn a_controller_without_evidence_fails() {
    if !permitted() {
        return;
    }
    // Nothing is sent in a run without a connection: nobody may believe its figures.
    let mut scenario = scenario("workload = \"bulk\"\nconnections = 1");
    scenario.path.down.loss = netem::Loss::Iid { p: units::Probability::ONE };
    let record = run_one(&scenario, &Kernel::named("kernel-cubic").unwrap(), 1, CONDITIONS);
    let RunOutcome::Failed(reason) = record.outcome else { panic!("nothing arrived, and the run counts") };
    assert!(reason.contains("no connection was established"), "{reason}");
}

#[test]
fn what_tcp_sends_again_counts_by_phase() {
    if !permitted() {
        return;
    }
    let kernel = Kernel::named("kernel-cubic").unwrap();
    let traffic = "workload = \"requests\"\nconnections = 1\nresponse-size = \"20 kB\"";
    // No outage; one that takes the SYN-ACK; one in the middle of the data.
    for (at, shares) in [(None, [0.0, 0.0, 0.0]), (Some(0), [1.0, 1.0, 0.0]), (Some(1_800), [1.0, 0.0, 1.0])] {
        let mut scenario = scenario(traffic);
        scenario.run.duration = Duration::from_millis(3_500);
        let lasts = Duration::from_millis(300);
        let outage =
            |at| netem::Outage { at: Duration::from_millis(at), lasts, every: None, packets: netem::Fate::Lost };
        scenario.path.down.outages.extend(at.map(outage));
        let record = run_one(&scenario, &kernel, 1, CONDITIONS);
        let record = completed(&record);
        let seen = [Figure::Resent, Figure::ResentSetup, Figure::ResentAfter].map(|figure| value(record, figure));
        assert_eq!(seen, shares.map(Some), "{at:?}");
    }
    let record = run_one(&scenario(traffic), contender("cubic").unwrap().as_ref(), 1, CONDITIONS);
    assert_eq!(value(completed(&record), Figure::Resent), None);
}

/// Programs that keep half of the machine busy.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().unwrap().get();
        let one = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..cores.div_ceil(2)).map(one).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn a_run_beside_a_busy_program_is_made_again() {
    if !permitted() {
        return;
    }
    let scenario = scenario("workload = \"bulk\"\nconnections = 1");
    let kernel = Kernel::named("kernel-cubic").unwrap();
    let (busy, looks) = (RefCell::new(Some(Busy::start())), RefCell::new(Vec::new()));
    let see = |senders: &[Option<Sender>]| {
        looks.borrow_mut().push(senders.len());
        if senders.is_empty() {
            busy.take();
        }
        ControlFlow::Continue(())
    };
    let watch = Watch { every: Duration::from_millis(100), see: &see };
    let conditions = Conditions { repeats: 1, ..Conditions::default() };
    let record = run_watched(&scenario, &kernel, 1, conditions, &watch);
    // Other tests may keep the machine busy in the second as well.
    let discarded = completed(&record).real_time.as_ref().unwrap().discarded.join(", ");
    assert!(discarded.contains("not to be trusted: "), "{discarded}");
    let looks = looks.into_inner();
    let between = looks.iter().position(|senders| *senders == 0).expect("what was seen does not count");
    assert!(between > 0 && looks[between + 1..].iter().all(|senders| *senders == 1), "{looks:?}");
}
