"""WebTransport with stacks by others, in both roles: every byte, datagram and close compared.

    run.py TIDERACE [--only PEER]... [--peers FOLDER]

TIDERACE is a built program, for the cells through the gateway. Builds the peers: needs cargo, Go, Python with venv, openssl and chromium;
cells of a peer that cannot be built are missing. Prints a line for each cell, then lines `measured WHAT: VALUE`; ends with 1 when a
cell is missing or wrong. README.md has the contract of the peers.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 180
BUILD_S = 3600

# Directions that one end receives, their bytes, and datagrams: what the contract asks for.
STREAMS, BYTES, DATAGRAMS = 75, 2_758_659, 1000
# Application protocol that servers choose of those that clients offer.
PROTOCOL = "sessions-1"
CLOSES = {"/streams": (4, "the client is done"), "/close": (7, "the server is done")}

# Versions of the peers, as their packages name them.
PEERS = ["webtransport-go", "wtransport", "web-transport-quinn", "aioquic", "chromium"]
CLIENTS_ONLY = {"chromium"}
# Peers whose close is no WT_CLOSE_SESSION, as draft-ietf-webtrans-http3 §6 has it.
CLOSES_THE_CONNECTION = {
    "wtransport": "known defect: `Connection::close` closes the QUIC connection with the code, and sends no WT_CLOSE_SESSION"
}
# Clients that offer no application protocol.
OFFERS_NONE = {
    "wtransport": "no application protocol: wtransport shows its client no field of the response",
    "chromium": "no application protocol: not asked for",
}
CONFIG = """listen = "127.0.0.1:%d"
certificate = "cert.pem"
key = "key.pem"
[[route]]
path = "/"
tls = { roots = "cert.pem", name = "localhost" }
webtransport = { origins = "*", to = "h3://%s" }
"""


class Missing(Exception):
    """A peer that cannot be built here, with a hint."""


def quiet(command, hint, **more):
    """Runs a step of a build."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, **more)
    except FileNotFoundError:
        raise Missing(f"{command[0]} is not there\nhint: {hint}") from None
    if ended.returncode:
        print(ended.stderr[-2000:], file=sys.stderr)
        raise Missing(f"`{' '.join(map(str, command[:3]))}` failed\nhint: {hint}")
    return ended.stdout


def rust(name, folder):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    if not rust.is_built:
        build = ["cargo", "build", "--locked", "--quiet", "-p", "sessions", "--bins"]
        quiet(build, "install Rust", cwd=HERE.parent)
        rust.is_built = True
    return [target / "debug" / name]


rust.is_built = False


def go(folder):
    program = folder / "webtransport-go"
    quiet(["go", "build", "-o", program, "."], "install Go 1.26 or later", cwd=HERE / "go")
    return [program]


def aioquic(folder):
    folder, requirements = folder / "sessions-aioquic", HERE / "aioquic" / "requirements.txt"
    python, mark = folder / "bin" / "python", folder / "installed.txt"
    if not mark.exists() or mark.read_text() != requirements.read_text():
        quiet([sys.executable, "-m", "venv", folder], "install Python 3.10 or later with its `venv` module")
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        quiet([python, *install], "aioquic comes from PyPI")
        mark.write_text(requirements.read_text())
    return [python, HERE / "aioquic" / "peer.py"]


def chromium(folder):
    if not shutil.which("chromium"):
        raise Missing("chromium is not there\nhint: apt-get install chromium")
    return [sys.executable, HERE / "chromium.py"]


BUILD = {
    "tiderace": lambda folder: rust("tiderace-sessions", folder),
    "wtransport": lambda folder: rust("wtransport-sessions", folder),
    "web-transport-quinn": lambda folder: rust("quinn-sessions", folder),
    "webtransport-go": go,
    "aioquic": aioquic,
    "chromium": chromium,
}


def version(peer):
    """The version that is pinned for a peer."""
    if peer == "webtransport-go":
        return re.search(r"webtransport-go (v\S+)", (HERE / "go" / "go.mod").read_text()).group(1)
    if peer == "aioquic":
        return (HERE / "aioquic" / "requirements.txt").read_text().strip().partition("==")[2]
    if peer == "chromium":
        return quiet(["chromium", "--version"], "").split()[1]
    lock = (HERE.parent / "Cargo.lock").read_text()
    return re.search(rf'name = "{peer}"\nversion = "([^"]+)"', lock).group(1)


def certificate(folder):
    files = ["-keyout", "key.pem", "-out", "cert.pem", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "10", "-subj", "/CN=localhost"]
    more = ["-addext", "basicConstraints=critical,CA:FALSE"]
    quiet(["openssl", "req", "-x509", *curve, *files, *more], "install openssl", cwd=folder)


class Running:
    """A program whose lines are collected."""

    def __init__(self, command, folder):
        self.log = open(folder / "log.txt", "a")
        self.lines, self.changed = [], threading.Condition()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
        self.process = subprocess.Popen(list(map(str, command)), cwd=folder, **pipes)
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()

    def until(self, found, limit=30):
        """Waits for lines for which `found` returns something."""
        with self.changed:
            self.changed.wait_for(lambda: found(self.lines), limit)
            return found(self.lines)

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def reports(lines):
    """The reports among the lines of a peer, by path."""
    found = [json.loads(line) for line in lines if line.startswith("{") and '"path"' in line]
    return {report["path"]: report for report in found}


def gateway(tiderace, folder, to):
    """Starts a gateway in front of a server, and returns where it listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "edge.toml").write_text(CONFIG % (port, to))
    running = Running([tiderace, "edge", "run", "--config", "edge.toml"], folder)
    begun = time.monotonic()
    while time.monotonic() - begun < 30:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return running, f"127.0.0.1:{port}"
        except OSError:
            time.sleep(0.05)
    running.end()
    raise TimeoutError("the gateway does not listen")


def play(client, server, folder, tiderace):
    """Runs a client against a server, through a gateway where `tiderace` is one; returns the reports of both."""
    serving = Running([*server, "server", "--listen", "127.0.0.1:0", "--cert", "cert.pem", "--key", "key.pem"], folder)
    programs = [serving]
    try:
        ready = serving.until(lambda lines: next((json.loads(line) for line in lines if '"ready"' in line), None))
        if not ready:
            raise TimeoutError("the server does not listen")
        address = ready["address"]
        if tiderace:
            running, address = gateway(tiderace, folder, address)
            programs.insert(0, running)
        command = [*client, "client", "--connect", address, "--ca", "cert.pem"]
        with open(folder / "log.txt", "a") as log:
            asked = subprocess.run(
                list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, timeout=PATIENCE_S
            )
        # The server reports each session at its end, which it may see a little later.
        serving.until(lambda lines: len(reports(lines)) == 2)
        return reports(asked.stdout.splitlines()), reports(serving.lines)
    finally:
        for program in programs:
            program.end()


class Cell:
    """What a client and a server saw of both sessions."""

    def __init__(self, client, server, through):
        self.client, self.server, self.through = client, server, through
        self.wrong, self.defects = [], []
        self.bytes = self.datagrams = self.resent = self.closes = 0
        self.draft = None
        self.agreed = False

    def judge(self, at_client, at_server):
        for role, seen in (("client", at_client), ("server", at_server)):
            report = seen.get("/streams")
            if not report:
                self.wrong.append(f"the {role} does not report")
                continue
            self.bytes += report["bytes"]
            self.datagrams += report["datagrams"]
            self.resent += report["resent"]
            self.draft = self.draft or report["draft"]
            if report["error"]:
                self.wrong.append(f"{role}: {report['error']}")
            got = (report["streams"], report["bytes"], report["datagrams"])
            if got != (STREAMS, BYTES, DATAGRAMS):
                self.wrong.append(f"{role}: {got} streams, bytes and datagrams")
        self.judge_protocol(at_client, at_server)
        self.judge_close("/streams", self.client, at_server)
        self.judge_close("/close", self.server, at_client)

    def judge_protocol(self, at_client, at_server):
        """Whether both ends agree on the application protocol, in both sessions."""
        expected = None if self.client in OFFERS_NONE else PROTOCOL
        # Some stacks say "" for none.
        seen = [report.get("protocol") or None for reports in (at_client, at_server) for report in reports.values()]
        if seen != 2 * len(CLOSES) * [expected]:
            self.wrong.append(f"application protocols {seen}, not {expected}")
        else:
            self.agreed = expected is not None

    def judge_close(self, path, closer, seen):
        """Whether the end that did not close saw code and message."""
        code, reason = CLOSES[path]
        close = seen.get(path, {}).get("close", {"code": None, "reason": "", "how": "no report"})
        if (close["code"], close["reason"]) == (code, reason):
            self.closes += 1
        elif closer in CLOSES_THE_CONNECTION and self.is_seen_below(code, reason, close):
            self.defects.append(f"{CLOSES_THE_CONNECTION[closer]} (seen: {close['how']})")
        else:
            self.wrong.append(f"close of {path}: {close}")

    def is_seen_below(self, code, reason, close):
        """Whether the close came as that of the connection. A gateway resets the session then, or the end of its connection comes first."""
        how = close["how"]
        if self.through:
            return "reset the session" in how or "closed by the peer's application (code 256)" in how
        return f"code {code}" in how and reason in how

    def line(self):
        way = f"{self.client} -> {'gateway -> ' if self.through else ''}{self.server}"
        text = f"{way}: {'wrong' if self.wrong else 'ok'}, {self.bytes} bytes, {self.datagrams} datagrams ({self.resent} sent again), {self.closes} closes"
        if self.draft and not self.through:
            text += f", {self.draft}"
        if self.agreed:
            text += f", {PROTOCOL}"
        lacks = [OFFERS_NONE[self.client]] if self.client in OFFERS_NONE else []
        return "\n  ".join([text, *self.wrong, *self.defects, *lacks])


def run(names, tiderace, peers, folder):
    programs, cells, missing = {}, [], []
    for name in ["tiderace", *names]:
        try:
            programs[name] = BUILD[name](peers)
        except Missing as why:
            missing.append(f"{name}: {why}")
    pairs = [(name, "tiderace") for name in names] + [("tiderace", name) for name in names if name not in CLIENTS_ONLY]
    for client, server in pairs:
        if client not in programs or server not in programs:
            continue
        for through in (False, True):
            cell = Cell(client, server, through)
            try:
                cell.judge(*play(programs[client], programs[server], folder, tiderace if through else None))
            except (TimeoutError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
                cell.wrong.append(str(error))
            print(cell.line(), flush=True)
            cells.append(cell)
    for why in missing:
        print(f"not run: {why}", flush=True)
    return cells, 2 * len(pairs), missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiderace", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=PEERS, help="a peer; all by default")
    parser.add_argument("--peers", type=pathlib.Path, default=HERE.parent / "target" / "peers", help="where peers are built")
    arguments = parser.parse_args()
    arguments.peers.mkdir(parents=True, exist_ok=True)
    names = arguments.only or PEERS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        certificate(folder)
        cells, wanted, missing = run(names, arguments.tiderace.resolve(), arguments.peers.resolve(), folder)
        if any(cell.wrong for cell in cells):
            print((folder / "log.txt").read_text()[-4000:], file=sys.stderr)
    absent = [why.partition(":")[0] for why in missing]
    print("peers:", ", ".join(f"{name} {version(name)}" for name in names if name not in absent))
    right = [cell for cell in cells if not cell.wrong]
    print(f"measured cells: {wanted}")
    print(f"measured cells that are right: {len(right)}")
    print(f"measured bytes compared: {sum(cell.bytes for cell in cells)}")
    print(f"measured datagrams compared: {sum(cell.datagrams for cell in cells)}")
    print(f"measured closes with code and message: {sum(cell.closes for cell in cells)}")
    print(f"measured closes that a known defect of the peer prevents: {sum(len(cell.defects) for cell in cells)}")
    print(f"measured cells that agree on an application protocol: {sum(cell.agreed for cell in cells)}")
    print(f"measured cells whose client offers no application protocol: {sum(cell.client in OFFERS_NONE for cell in cells)}")
    sys.exit(0 if len(right) == wanted else 1)


if __name__ == "__main__":
    main()
