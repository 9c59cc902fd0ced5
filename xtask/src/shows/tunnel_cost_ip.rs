//! A gateway in a network namespace of its own, for the cost of CONNECT-IP: packets from a tunnel reach an address of the namespace, so
//! that no packet has to be forwarded.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Context, edge_servers::Gentle};

/// Address of the namespace in which targets are.
const ADDRESS: &str = "10.77.0.1";
/// Ports in the namespace, where nobody else has any.
const LISTEN: &str = "127.0.0.1:8443";
const TARGET_PORT: u16 = 5_001;
/// Time for the gateway to start.
const START: Duration = Duration::from_secs(30);

/// The gateway, whose process is that of `unshare`.
pub(super) struct IpSite {
    pub(super) edge: Gentle,
}

impl IpSite {
    /// Starts the gateway. `scratch` has its certificate.
    ///
    /// # Errors
    /// When namespaces or TUN devices are not permitted, among others.
    pub(super) fn start(context: &Context, built: &Path, scratch: &Path) -> Result<Self> {
        let config = scratch.join("edge-ip.toml");
        let text = format!(
            "listen = \"{LISTEN}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n[[route]]\npath = \"/.well-known/masque/ip\"\n\
             [route.ip-proxy]\nopen = true\naddresses = \"10.89.0.0/16\"\nallow = \"{ADDRESS}\"\nopened-per-second = 1000\n"
        );
        std::fs::write(&config, text)?;
        // `exec` all the way: the process that is started becomes the gateway.
        let script =
            format!("ip link set lo up && ip address add {ADDRESS}/32 dev lo && exec \"$0\" edge run --config \"$1\"");
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--user", "--map-root-user", "--net", "sh", "-c", &script])
            .args([&built.join("tiderace"), &config]);
        let edge = context.commands.start("tunnel-cost-edge-ip", &mut unshare);
        let mut edge = Gentle(edge.context("unshare is missing: apt install util-linux")?);
        let begun = Instant::now();
        while !edge.0.printed().contains("serving ") {
            ensure!(
                edge.0.alive() && begun.elapsed() < START,
                "the gateway does not start in a namespace of its own, which takes user namespaces \
                 (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or root), iproute2 and /dev/net/tun: {}",
                edge.0.printed()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { edge })
    }

    /// The load with so many datagrams in a direction, in the namespace.
    pub(super) fn load(&self, program: &Path, certificate: &Path, direction: &str, datagrams: u32) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.edge.0.id().to_string(), "--user", "--preserve-credentials", "--net"]);
        command.arg(program).args(["through-ip", LISTEN]).arg(certificate);
        command.args([&format!("{ADDRESS}:{TARGET_PORT}"), direction, &datagrams.to_string()]);
        command
    }
}
