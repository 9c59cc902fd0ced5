//! Start, supervision and stop of a relay.

use std::{
    io::{self, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    sync::mpsc,
    thread::JoinHandle,
};

use netem::{Link, LinkConfig};

use crate::{
    RelayConfig, RelayError, Statistics,
    socket::UdpSocket,
    translation,
    worker::{Command, Worker},
};

/// A running relay, on its own thread. Stops when dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    commands: mpsc::Sender<Command>,
    wake: UnixStream,
    thread: Option<JoinHandle<io::Result<Statistics>>>,
}

impl Relay {
    /// Starts a relay. When this returns, packets are relayed.
    ///
    /// # Errors
    /// When the listening address is not available, there is no route to the server, the settings of a link are contradictory or
    /// unsupported, or the system refuses a resource. Whether a server listens at its address is not checked.
    pub fn start(config: &RelayConfig) -> Result<Self, RelayError> {
        let link = |direction, settings: &LinkConfig, index| {
            if matches!(settings.queue, netem::Queue::Codel(_) | netem::Queue::FqCodel(_)) {
                return Err(RelayError::ManagedQueue { direction });
            }
            Link::new(settings, config.seed.child("relay", index))
                .map_err(|source| RelayError::Link { direction, source })
        };
        let links = [link("up", &config.up, 0)?, link("down", &config.down, 1)?];
        if let Some(index) = config.nat.as_ref().and_then(|nat| translation::impossible(nat, config.to)) {
            return Err(RelayError::OtherAddress { index });
        }
        // Only to find out whether there is a way.
        UdpSocket::connect(config.to).map_err(|source| RelayError::Target { address: config.to, source })?;
        let listen = |source| RelayError::Listen { address: config.listen, source };
        let listener = UdpSocket::listen(config.listen).map_err(listen)?;
        let address = listener.address().map_err(listen)?;
        let system = |what| move |source| RelayError::System { what, source };
        let (wake, woken) = UnixStream::pair().map_err(system("make a pair of sockets"))?;
        woken.set_nonblocking(true).map_err(system("make a pair of sockets"))?;
        let (commands, orders) = mpsc::channel();
        let worker = Worker::new(config.clone(), links, listener, orders, woken).map_err(system("make a timer"))?;
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || worker.run())
            .map_err(system("start a thread"))?;
        tracing::debug!(%address, to = %config.to, "relay started");
        Ok(Self { address, commands, wake, thread: Some(thread) })
    }

    /// Address that clients send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters since the start.
    ///
    /// # Errors
    /// When the relay has stopped because of an error, which [`Self::stop`] returns.
    pub fn statistics(&self) -> Result<Statistics, RelayError> {
        let (to, from) = mpsc::channel();
        self.command(Command::Report(to));
        from.recv().map_err(|_| RelayError::Fault)
    }

    /// Stops the relay; waiting packets are dropped. Returns its statistics.
    ///
    /// # Errors
    /// When it had stopped before, because of an error.
    pub fn stop(mut self) -> Result<Statistics, RelayError> {
        self.command(Command::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Ok(statistics))) => Ok(statistics),
            Some(Ok(Err(source))) => Err(RelayError::System { what: "keep the relay running", source }),
            Some(Err(_)) | None => Err(RelayError::Fault),
        }
    }

    /// Sends a command and wakes the thread. If the thread has ended, the command is lost; the caller that waits for the result gets the
    /// error.
    fn command(&self, command: Command) {
        let _ = self.commands.send(command);
        let _ = (&self.wake).write_all(&[1]);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.command(Command::Stop);
            let _ = thread.join();
        }
    }
}
