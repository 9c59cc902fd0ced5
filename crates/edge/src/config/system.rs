//! Faults that the system finds: an address, a log or a socket of the configuration that cannot be opened. `check` and a start word them
//! alike.

use std::{fmt::Display, io, path::Path};

use super::read::{
    ConfigCause, Fault,
    Step::{self, Key, Number},
};

/// Address of `field` that cannot be served.
pub(crate) fn listen(field: &'static str, address: impl Display, why: &io::Error) -> Fault {
    let path: Vec<Step> = field.split('.').map(Key).collect();
    let fault = Fault::of(&path, format!("cannot listen at {address}: {why}"), ConfigCause::Address(why.kind()));
    match why.kind() {
        io::ErrorKind::AddrInUse => fault.hint(
            "another program serves there, or a socket unit has it open; `ss -lntup` names it. `tiderace edge reload` gives a gateway that runs a new \
             configuration",
        ),
        io::ErrorKind::PermissionDenied => fault
            .hint("ports below 1024 need a privilege: AmbientCapabilities=CAP_NET_BIND_SERVICE with systemd, or a socket unit"),
        _ => fault.hint("`ip address` shows the addresses of this machine"),
    }
}

/// Access log that cannot be opened.
pub(crate) fn access_log(log: &str, why: &io::Error) -> Fault {
    let message = format!("cannot open the access log {log}: {}", reason(why));
    Fault::of(&[Key("log"), Key("access")], message, ConfigCause::Output(why.kind()))
        .hint("make the directory, for the gateway's user to write to")
}

/// Admin socket that cannot be opened.
pub(crate) fn admin_socket(socket: &Path, why: &io::Error) -> Fault {
    let message = format!("cannot open the admin socket {}: {}", socket.display(), reason(why));
    Fault::of(&[Key("admin"), Key("socket")], message, ConfigCause::Output(why.kind()))
        .hint("below /run, systemd makes its directory: RuntimeDirectory=tiderace")
}

/// TUN device of a route that cannot be opened.
pub(crate) fn device(route: usize, device: &str, why: &io::Error) -> Fault {
    let at = [Key("route"), Number(route), Key("ip-proxy"), Key("device")];
    let message = format!("cannot open the TUN device {device}: {why}");
    let fault = Fault::of(&at, message, ConfigCause::Output(why.kind()));
    match why.kind() {
        io::ErrorKind::NotFound => fault.hint("`modprobe tun`; in a container: --device /dev/net/tun"),
        io::ErrorKind::PermissionDenied => fault.hint(format!(
            "`ip tuntap add dev {device} mode tun user NAME` makes it for the gateway's user; or AmbientCapabilities=CAP_NET_ADMIN with systemd"
        )),
        _ => fault.hint(format!("`ip address show {device}` shows what it is")),
    }
}

/// Reason for which a new file or socket cannot be opened. It need not exist, but its directory has to.
fn reason(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => "its directory does not exist".to_owned(),
        _ => why.to_string(),
    }
}
