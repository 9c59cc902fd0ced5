//! Sockets of a service manager, and programs that are started with them.

use std::{
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::io::fcntl_dupfd_cloexec;
use socket2::{Socket, Type};

use crate::{fleet::Fleet, gateway::Gateway};

/// Descriptors of a test that are out of the way of those of the program.
const OUT_OF_THE_WAY: RawFd = 200;

/// Open sockets, in the order of their descriptors.
pub(crate) struct Unit {
    pub(crate) address: SocketAddr,
    pub(crate) sockets: Vec<OwnedFd>,
}

impl Unit {
    /// A listening TCP socket, and this number of UDP sockets at the same address, as systemd opens them with `ReusePort=yes`.
    pub(crate) fn open(udp: usize) -> Self {
        // The port of the first TCP socket may be taken for UDP.
        (0..32).find_map(|_| Self::try_open(udp)).expect("a port that is free for both")
    }

    fn try_open(udp: usize) -> Option<Self> {
        let tcp = bound(Type::STREAM, ([127, 0, 0, 1], 0).into(), true)?;
        tcp.listen(128).unwrap();
        let address = tcp.local_addr().unwrap().as_socket().unwrap();
        let udp = (0..udp).map(|_| bound(Type::DGRAM, address, true)).collect::<Option<Vec<_>>>()?;
        let sockets = [tcp].into_iter().chain(udp).map(OwnedFd::from).collect();
        Some(Self { address, sockets })
    }

    /// Command of a gateway with this configuration that gets the sockets. `before` runs the program: it is a prefix such as `setpriv …`.
    pub(crate) fn command(&self, before: &str, program: &str, config: &Path) -> Command {
        let mut command = started_with(&self.sockets, &format!("export LISTEN_PID=$$; exec {before} \"$@\""), config);
        // The first argument after the script is `$0`.
        command.args(["sh", program, "edge", "run", "--config"]).arg(config);
        command.env("LISTEN_FDS", self.sockets.len().to_string());
        command
    }

    /// Starts a gateway with this configuration.
    pub(crate) fn start(&self, config: &Path) -> Gateway {
        Gateway::started(self.command("", env!("CARGO_BIN_EXE_tiderace"), config))
    }

    /// Starts the first process of a fleet, with `extra` in its configuration.
    pub(crate) fn fleet(&self, name: &str, extra: &str) -> Fleet {
        Fleet::run(name, [extra, ""], |config| {
            self.configure(config);
            self.start(config)
        })
    }

    /// Puts the address of the sockets into a configuration.
    pub(crate) fn configure(&self, config: &Path) {
        let text = fs::read_to_string(config).unwrap();
        fs::write(config, text.replace("127.0.0.1:0", &self.address.to_string())).unwrap();
    }

    /// Texts by which the system lists the sockets in `/proc/PID/fd`.
    pub(crate) fn inodes(&self) -> Vec<String> {
        let name = |socket: &OwnedFd| fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        self.sockets.iter().map(|socket| name(socket).display().to_string()).collect()
    }
}

/// A shell that runs `script` with these descriptors from 3 on.
pub(crate) fn started_with(sockets: &[OwnedFd], script: &str, config: &Path) -> Command {
    let copies: Vec<OwnedFd> =
        sockets.iter().map(|socket| fcntl_dupfd_cloexec(socket, OUT_OF_THE_WAY).unwrap()).collect();
    let mut command = Command::new("sh");
    command.args(["-c", script]).env_remove("RUST_LOG").stdin(Stdio::null());
    command.current_dir(config.parent().unwrap());
    let pass = move || {
        for (number, copy) in (3..).zip(&copies) {
            #[expect(unsafe_code, reason = "the descriptor is for the program, and no owner may close it here")]
            // SAFETY: dup2 touches no memory, and the program that runs next is the only one that uses the number.
            let result = unsafe { libc::dup2(copy.as_raw_fd(), number) };
            if result < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    #[expect(unsafe_code, reason = "descriptors with given numbers have no other way into a program")]
    // SAFETY: the closure makes system calls only.
    unsafe {
        command.pre_exec(pass)
    };
    command
}

/// A socket at this address, or `None` where it is taken.
pub(crate) fn bound(kind: Type, address: SocketAddr, is_shared: bool) -> Option<Socket> {
    let socket = Socket::new(socket2::Domain::for_address(address), kind, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(is_shared).unwrap();
    socket.bind(&address.into()).ok().map(|()| socket)
}

/// Descriptors of a process that are open for this socket, as the system names it: `socket:[4711]`.
pub(crate) fn descriptors(pid: u32, name: &str) -> Vec<RawFd> {
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link.as_os_str() == name);
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(is_it).map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

/// Bytes that wait in each UDP socket at a port of this machine.
pub(crate) fn waiting(port: u16) -> Vec<u64> {
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let of_port = |line: &&str| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&format!(":{port:04X}")));
    let queue = |line: &str| u64::from_str_radix(line.split_whitespace().nth(4)?.split_once(':')?.1, 16).ok();
    table.lines().skip(1).filter(of_port).filter_map(queue).collect()
}

/// A TCP and a UDP socket of which nobody knows, at ports of their own.
pub(crate) fn other_sockets() -> (TcpListener, UdpSocket) {
    (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap())
}
