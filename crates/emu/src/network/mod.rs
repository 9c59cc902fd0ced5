//! Emulated networks for any program: two network namespaces joined by the links of `netem`.
//!
//! A [`Network`] has a client side and a server side, each a [`Namespace`] with a device ([`DeviceKind`]). One thread reads the packets of both devices,
//! passes them through the links, and writes them to the other device when they are due. The same scenario gives the same path as in the
//! simulator: rate, queue (drop-tail, CoDel, FQ-CoDel), delay, jitter, loss, reordering, changes on a schedule, outages, and address
//! translation with rebinding.
//!
//! - **No remains.** Namespaces and devices have no names in the system. They vanish with the process, however it ends.
//! - **No offloads.** The kernel segments TSO and USO super-packets before the device, so links see packets as on a wire.
//! - **Exact rates.** A packet's fate is computed when it is read. A late thread delays single packets; errors do not add up.
//! - **On time.** The thread has real-time priority, idle processors are kept awake, and the timer is set ahead by the time that a wake-up takes, where
//!   the system allows it. No packet is delivered early.
//! - **Validity.** Every run reports whether its figures can be trusted: see [`NetworkStatistics::doubt`].
//!
//! IPv4 only. If the scenario has a path MTU below 1500 bytes, it is also the MTU of the devices: TCP learns it as behind an access link
//! that knows its MTU. A later decrease of the MTU drops packets silently.

mod awake;
mod command;
mod device;
mod load;
mod packet;
mod port;
mod privilege;
mod space;
#[expect(unsafe_code, reason = "unshare and setns have no safe interface in std or socket2")]
mod sys;
mod tcp;
mod worker;

use core::fmt;
use std::{
    io::{self, Write},
    net::Ipv4Addr,
    os::unix::net::UnixStream,
    sync::mpsc,
    thread::JoinHandle,
};

use netem::{DropReason, Histogram, Link, LinkConfig, LinkCounters, NatConfig};
use units::{DataSize, Duration, Seed, duration_text};

use awake::Awake;
use device::Devices;

pub use command::{Command, Ended, Output, Running, supervise};
pub use device::DeviceKind;
pub use load::{CpuTime, Load, thread_cpu};
pub use port::{Buffer, Port, Waiter, address, now};
pub use privilege::Privilege;
pub use space::Namespace;
pub use sys::die_with_this_thread;
pub use tcp::{TcpInfo, accept_fast_open, connect_fast_open, controllers, is_multipath, permit_fast_open};

/// Address of the client side.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// Address of the server side.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// MTU of Ethernet, in bytes.
const MTU: u32 = 1_500;

/// Settings of an emulated network.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// From the client side to the server side.
    pub up: LinkConfig,
    /// From the server side to the client side.
    pub down: LinkConfig,
    /// Address translation between the client side and the links.
    pub nat: Option<NatConfig>,
    /// The same seed gives the n-th packet the same luck: that of a simulated dumbbell whose network has this seed.
    pub seed: Seed,
    /// Limit on the bytes of waiting packets. Packets beyond it are dropped, and the run is in doubt.
    pub max_held: DataSize,
    /// Kind of the devices; `None`: TUN devices where this process can open them, otherwise veth pairs.
    pub device: Option<DeviceKind>,
}

impl NetworkConfig {
    /// A network with these links.
    pub const fn new(up: LinkConfig, down: LinkConfig, seed: Seed) -> Self {
        Self { up, down, nat: None, seed, max_held: DataSize::from_bytes(256 << 20), device: None }
    }

    /// The MTU of the devices: that of the path at its beginning, at most that of Ethernet.
    fn mtu(&self) -> u32 {
        [self.up.mtu, self.down.mtu].into_iter().flatten().fold(MTU, u32::min)
    }
}

/// Error of an emulated network that cannot be set up. [`Self::hint`] has advice.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The system refuses network namespaces.
    #[error("this system does not let {user} make network namespaces: {source}", user = who())]
    Namespace {
        /// Error of the system.
        source: io::Error,
    },
    /// No TUN device.
    #[error("cannot open /dev/net/tun: {source}")]
    Tun {
        /// Error of the system.
        source: io::Error,
    },
    /// No pair of veth devices, or no packet socket.
    #[error("cannot make a veth pair with packet sockets: {source}")]
    Veth {
        /// Error of the system.
        source: io::Error,
    },
    /// Neither kind of devices.
    #[error("cannot open /dev/net/tun ({}), nor make a veth pair with packet sockets: {veth}", tun.kind())]
    NoDevice {
        /// Error of TUN devices.
        tun: io::Error,
        /// Error of veth pairs.
        veth: io::Error,
    },
    /// The settings of a link contradict themselves.
    #[error("{direction}: {source}")]
    Link {
        /// `up` or `down`.
        direction: &'static str,
        /// The fault.
        source: netem::ConfigError,
    },
    /// Another system call that a network needs failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempt.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// A thread of the network has panicked. A fault of this program.
    #[error("the emulated network has stopped because of a fault of its own")]
    Fault,
}

fn who() -> &'static str {
    if sys::identity().0 == 0 { "root" } else { "an ordinary user" }
}

impl NetworkError {
    /// Hint for the person at the keyboard.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Namespace { source } if source.raw_os_error() == Some(libc::ENOSPC) => Some(
                "`sysctl user.max_user_namespaces` and `user.max_net_namespaces` must be above 0; or run it as root",
            ),
            Self::Namespace { .. } => Some(
                "run it as root, or permit user namespaces: `sysctl kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, \
                 `kernel.unprivileged_userns_clone=1` on older Debian, `--privileged` for a container",
            ),
            Self::Tun { source } if source.kind() == io::ErrorKind::PermissionDenied => Some(
                "run it as root, or open the device to everybody as most distributions do: `chmod 0666 /dev/net/tun`",
            ),
            Self::Tun { source } if source.kind() == io::ErrorKind::NotFound => {
                Some("load the module with `modprobe tun`; for a container: `--device /dev/net/tun`")
            }
            Self::Tun { .. } => Some("load the module with `modprobe tun`"),
            Self::Veth { .. } => {
                Some("load the modules with `modprobe veth` and `modprobe af_packet`; or use TUN devices")
            }
            Self::NoDevice { .. } => Some(
                "load a module with `modprobe tun` or `modprobe veth`, or open /dev/net/tun to everybody: `chmod 0666 /dev/net/tun`; \
                 for a container: `--device /dev/net/tun`",
            ),
            _ => None,
        }
    }
}

/// Counters of an emulator up to a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The link from the client to the server.
    pub up: LinkCounters,
    /// The link from the server to the client.
    pub down: LinkCounters,
    /// Times that packets waited in the queues of these links since the snapshot before, in nanoseconds.
    pub queueing: [Histogram; 2],
    /// Delay of the writing of each packet behind its time, in nanoseconds.
    pub lateness: Histogram,
    /// Delay of the timer's wake-ups before the run, in nanoseconds.
    pub calibration: Histogram,
    /// Packets written to the far end.
    pub written: u64,
    /// Packets that the far end's device did not take.
    pub write_failed: u64,
    /// Packets that came to a device and could not be read from it: no room until then. Veth pairs alone tell it here.
    pub unread: u64,
    /// Packets dropped because too many bytes were waiting.
    pub overflowed: u64,
    /// Packets that are no IPv4 unicast.
    pub ignored: u64,
    /// Mappings that the NAT made in place of others.
    pub rebindings: u64,
    /// Packets of the server that the NAT dropped, because their mapping was gone.
    pub unmapped: u64,
    /// CPU time of the emulator's thread, in nanoseconds.
    pub emulator_cpu: u64,
    /// Part of `emulator_cpu` in which it wrote packets to devices: the receiving kernel's part of TCP and UDP runs there.
    pub receiving_cpu: u64,
    /// The thread runs before all ordinary ones (real-time priority): the system allowed it.
    pub preferred: bool,
}

/// Lateness at the 99th percentile above which delays differ from the configured ones.
pub const TRUSTED_LATENESS: Duration = Duration::from_millis(1);
/// Above this share of the machine, other programs may have kept the ends from working.
pub const TRUSTED_FOREIGN: f64 = 0.25;
/// Above this share, the host below this virtual machine may have.
pub const TRUSTED_STOLEN: f64 = 0.05;

/// Counters of a network, and the state of the machine meanwhile.
#[derive(Clone, Debug)]
pub struct NetworkStatistics {
    /// The emulator's counters.
    pub emulator: Snapshot,
    /// Devices that carried the packets.
    pub device: DeviceKind,
    /// Packets that the devices dropped: the emulator, or the kernel behind it, was too slow.
    pub device_drops: u64,
    /// Idle processors were kept awake, so that packets and timers woke their threads sooner: the system allowed it.
    pub kept_awake: bool,
    /// CPU time of others.
    pub load: Load,
}

impl NetworkStatistics {
    /// Reason why this run does not show what was configured, if so: packets were lost on this machine, or late.
    pub fn doubt(&self) -> Option<String> {
        let emulator = &self.emulator;
        for (count, what) in [
            (self.device_drops, "were dropped by the devices"),
            (emulator.overflowed, "were dropped because too many bytes were on their way"),
            (emulator.write_failed, "were not taken by the far end's device"),
        ] {
            if count > 0 {
                return Some(format!("{count} packets {what}"));
            }
        }
        let late = emulator.lateness.quantile_duration(0.99)?;
        (late > TRUSTED_LATENESS)
            .then(|| format!("1 % of the packets were delivered more than {} late", duration_text::display(late)))
    }

    /// Reason why other programs may have slowed down the ends, if so.
    pub fn busy(&self) -> Option<String> {
        let Load { foreign, stolen, .. } = self.load;
        for (share, limit, who) in
            [(foreign, TRUSTED_FOREIGN, "other programs used"), (stolen, TRUSTED_STOLEN, "the host took away")]
        {
            if share > limit {
                return Some(format!("{who} {:.0} % of this machine (limit {:.0} %)", share * 100.0, limit * 100.0));
            }
        }
        None
    }
}

impl fmt::Display for NetworkStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let emulator = &self.emulator;
        for (name, link) in [("up", &emulator.up), ("down", &emulator.down)] {
            write!(f, "{name:<5} {} packets in, {} delivered", link.offered.packets, link.delivered.packets)?;
            for reason in DropReason::ALL {
                if link.dropped(reason).packets > 0 {
                    write!(f, ", {} dropped ({})", link.dropped(reason).packets, reason.name())?;
                }
            }
            writeln!(f)?;
        }
        let late = |histogram: &Histogram, q| {
            duration_text::display(histogram.quantile_duration(q).unwrap_or_default()).to_string()
        };
        let lateness = |q| late(&emulator.lateness, q);
        write!(f, "late  {} at the median, {} p99, {} p99.9", lateness(0.5), lateness(0.99), lateness(0.999))?;
        writeln!(f, "; timer before the run {} p99", late(&emulator.calibration, 0.99))?;
        write!(
            f,
            "host  other programs {:.0} %, stolen {:.0} %, {} packets dropped by {}, {} priority{}",
            self.load.foreign * 100.0,
            self.load.stolen * 100.0,
            self.device_drops,
            self.device,
            if emulator.preferred { "real-time" } else { "ordinary" },
            if self.kept_awake { ", processors kept awake" } else { "" },
        )?;
        if emulator.rebindings > 0 || emulator.unmapped > 0 {
            write!(
                f,
                "\nnat   {} rebindings, {} packets to mappings that were gone",
                emulator.rebindings, emulator.unmapped
            )?;
        }
        Ok(())
    }
}

/// A running emulated network. Ends when dropped; its namespaces last while they are held.
#[derive(Debug)]
pub struct Network {
    client: Namespace,
    server: Namespace,
    /// Namespace of the emulator's ends of veth pairs.
    middle: Option<Namespace>,
    device: DeviceKind,
    commands: mpsc::Sender<worker::Command>,
    wake: UnixStream,
    thread: Option<JoinHandle<io::Result<Snapshot>>>,
    awake: Option<Awake>,
    begun: CpuTime,
}

impl Network {
    /// Makes both sides, calibrates the timer (a tenth of a second) and starts the emulator. [`Privilege::acquire`] comes first.
    ///
    /// # Errors
    /// When the settings of a link contradict themselves, or the system refuses namespaces, devices or another resource.
    pub fn start(config: &NetworkConfig) -> Result<Self, NetworkError> {
        let link = |direction, settings: &LinkConfig, index| {
            Link::new(settings, config.seed.child("link", index))
                .map_err(|source| NetworkError::Link { direction, source })
        };
        let links = [link("up", &config.up, 0)?, link("down", &config.down, 1)?];
        let mtu = config.mtu();
        let (client, server) = (Namespace::new(CLIENT)?, Namespace::new(SERVER)?);
        let Devices { devices, kind: device, middle } = device::add([&client, &server], mtu, config.device)?;
        let system = |what| move |source| NetworkError::System { what, source };
        let (wake, woken) = UnixStream::pair().map_err(system("make a pair of sockets"))?;
        woken.set_nonblocking(true).map_err(system("make a pair of sockets"))?;
        let (commands, orders) = mpsc::channel();
        let worker = worker::Worker::new(config, links, devices, orders, woken).map_err(system("make a timer"))?;
        let awake = Awake::request().ok();
        let (calibrated, calibration) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("emulator".to_owned())
            .spawn(move || worker.run(&calibrated))
            .map_err(system("start a thread"))?;
        // An error that ends the thread comes out when it is stopped.
        let _ = calibration.recv();
        Ok(Self { client, server, middle, device, commands, wake, thread: Some(thread), awake, begun: CpuTime::now() })
    }

    /// The client side.
    pub const fn client(&self) -> &Namespace {
        &self.client
    }

    /// The server side.
    pub const fn server(&self) -> &Namespace {
        &self.server
    }

    /// Devices that carry the packets.
    pub const fn device(&self) -> DeviceKind {
        self.device
    }

    /// Has the time of the links begin now. Without it, it begins with the first packet.
    pub fn begin(&self) {
        self.command(worker::Command::Begin);
    }

    /// Counters since the start. The queueing times start again.
    ///
    /// # Errors
    /// When the emulator has stopped because of an error, which [`Self::stop`] returns.
    pub fn snapshot(&self) -> Result<Snapshot, NetworkError> {
        let (to, from) = mpsc::channel();
        self.command(worker::Command::Snapshot(to));
        from.recv().map_err(|_| NetworkError::Fault)
    }

    /// Stops the emulator; waiting packets are dropped. Returns its statistics.
    ///
    /// # Errors
    /// When it had stopped by itself because of an error.
    pub fn stop(mut self) -> Result<NetworkStatistics, NetworkError> {
        let system = |what| move |source| NetworkError::System { what, source };
        let load = CpuTime::now().since(&self.begun);
        let namespaces = [Some(&self.client), Some(&self.server), self.middle.as_ref()];
        let drops = namespaces.into_iter().flatten().map(Namespace::drops).sum::<io::Result<u64>>();
        self.command(worker::Command::Stop);
        let thread = self.thread.take().ok_or(NetworkError::Fault)?;
        let emulator = thread.join().map_err(|_| NetworkError::Fault)?.map_err(system("emulate the network"))?;
        let device_drops = drops.map_err(system("read the counters of a device"))? + emulator.unread;
        let kept_awake = self.awake.is_some();
        Ok(NetworkStatistics { emulator, device: self.device, device_drops, kept_awake, load })
    }

    fn command(&self, command: worker::Command) {
        // Both fail only when the thread has ended, which its owner finds out when it asks for something.
        let _ = self.commands.send(command);
        let _ = (&self.wake).write(&[1]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.command(worker::Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
