#!/usr/bin/env bash
# The package in a Debian of its own. Prints lines `measured WHAT: ok` or `measured WHAT: no DETAIL`.
#
#     deb.sh PACKAGE PROGRAM BASE SCRATCH PORT
#
# BASE keeps a Debian made by debootstrap, SCRATCH gets a copy of it. PROGRAM asks the gateway from outside. Needs root.
set -euo pipefail
package=$1 program=$2 base=$3 scratch=$4 port=$5
root=$scratch/root
gateway=

# Ends the gateway that was started here, whatever happens.
stop() {
    if [[ -n $gateway ]]; then
        kill "$gateway" 2>/dev/null || true
        wait "$gateway" 2>/dev/null || true
        gateway=
    fi
}
trap stop EXIT

# check WHAT COMMAND…: runs a command and says how it ended.
check() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "measured $what: ok"
    else
        echo "measured $what: no $(tail -n 1 <<<"$said")"
    fi
}

inside() {
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

# Everything but what dpkg, apt and the database of users keep about any package.
files() {
    (cd "$root" && find etc usr var srv opt home -path var/lib/dpkg -prune -o -path var/cache -prune -o -path var/lib/apt -prune \
        -o -path var/log -prune -o -print | grep -v -E '^etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|^etc/\.pwd\.lock$' | sort)
}

install() {
    cp "$1" "$root/tmp/package.deb"
    inside apt-get install --yes --no-install-recommends /tmp/package.deb
}

# serve: starts the gateway as the service would, and waits until it listens.
serve() {
    chroot --userspec=tiderace-edge:tiderace-edge "$root" /usr/bin/tiderace edge run --config /etc/tiderace/edge.toml >"$scratch/gateway.log" 2>&1 &
    gateway=$!
    for _ in $(seq 600); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            return 0
        fi
        kill -0 "$gateway" || { cat "$scratch/gateway.log"; return 1; }
        sleep 0.1
    done
    return 1
}

fetches() {
    [[ $("$program" get "$1" --silent --ca "$root/etc/tiderace/cert.pem" "https://localhost:$port/") == 'from the package' ]]
}

nothing_runs() {
    local link
    for link in /proc/[0-9]*/exe; do
        [[ $(readlink "$link" 2>/dev/null) != "$root/usr/bin/tiderace" ]] || return 1
    done
    [[ -z $(find "$root/etc/systemd" -name 'tiderace*') ]]
}

kept() {
    grep -q "127.0.0.1:$port" "$root/etc/tiderace/edge.toml"
}

if [[ ! -e $base/complete ]]; then
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase bookworm "$base/root" http://deb.debian.org/debian >"$scratch/debootstrap.log" 2>&1
    touch "$base/complete"
fi
cp -a "$base/root" "$root"
mkdir -p "$root/var/www/html" "$root/run"
# apt asks for its user's right to read the folder.
chmod 755 "$scratch"

# What adduser leaves is adduser's: it is there before.
inside apt-get install --yes --no-install-recommends adduser >"$scratch/adduser.log" 2>&1
files >"$scratch/before"
check 'installs' install "$package"
check 'starts nothing by itself' nothing_runs
check 'has a user for the service' inside getent passwd tiderace-edge
check 'program runs' inside tiderace version
check 'has manual pages' test -e "$root/usr/share/man/man1/tiderace-edge-run.1.gz"
check 'has completions' inside bash -n /usr/share/bash-completion/completions/tiderace
check 'has the sockets of the unit' test -e "$root/usr/lib/systemd/system/tiderace-edge.socket"
check 'enables no unit' test -z "$(find "$root/etc/systemd" -name 'tiderace-*' 2>/dev/null)"
check 'the unit starts the program of the package' grep -q '^ExecStart=/usr/bin/tiderace edge run' "$root/usr/lib/systemd/system/tiderace-edge.service"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -addext basicConstraints=critical,CA:FALSE -keyout "$root/etc/tiderace/key.pem" -out "$root/etc/tiderace/cert.pem" 2>/dev/null
inside chgrp tiderace-edge /etc/tiderace/key.pem
chmod 640 "$root/etc/tiderace/key.pem"
echo 'from the package' >"$root/var/www/html/index.html"
check 'configuration as it comes is valid' inside tiderace edge check --config /etc/tiderace/edge.toml
sed -i -e "s/^listen = .*/listen = \"127.0.0.1:$port\"/" -e '/^\[admin\]/d' -e '/^socket = /d' "$root/etc/tiderace/edge.toml"

serve || true
check 'gateway runs as the user of the service' test "$(stat -c %u "/proc/$gateway")" = "$(inside id -u tiderace-edge)"
check 'serves a file over HTTP/3' fetches --http3
check 'serves a file over HTTP/2' fetches --http2

# The same files under the next version.
dpkg-deb --raw-extract "$package" "$scratch/next"
sed -i 's/^Version: .*/&+next/' "$scratch/next/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$scratch/next" "$scratch/next.deb" >/dev/null
check 'upgrades while the gateway runs' install "$scratch/next.deb"
check 'is the next version' inside sh -c "dpkg-query -W -f '\${Version}' tiderace | grep -q next"
check 'keeps a changed configuration' kept
check 'serves during the upgrade' fetches --http3
stop
serve || true
check 'serves after the upgrade' fetches --http3
stop

check 'removes' inside apt-get remove --yes tiderace
check 'keeps the configuration when it is removed' kept
mkdir -p "$root/var/lib/tiderace/acme"
check 'purges' inside apt-get purge --yes tiderace
rm -rf "$root/var/www"
files >"$scratch/after"
check 'leaves nothing behind' diff <(grep -v '^var/www' "$scratch/before") "$scratch/after"
