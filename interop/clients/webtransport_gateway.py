"""Chromium against `tiderace edge` with `[route.webtransport]`: streams of a page go to a TCP service, its datagrams to a UDP service.

    webtransport_gateway.py TIDERACE

Then the test page of the gateway, with its certificate trusted by its key. Needs `chromium` and `openssl` on the path. Both services are in
this program, and send back what comes. Prints lines `measured WHAT: VALUE`; ends with 1 when one is not `ok`.
"""

import base64
import hashlib
import http.server
import json
import pathlib
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import webtransport

PATIENCE_S = 30

PAGE = """<!doctype html><title>sessions through the gateway</title><script>
const hash = Uint8Array.from(%s);
const options = {serverCertificateHashes: [{algorithm: 'sha-256', value: hash}]};
const base = 'https://127.0.0.1:%d';
const results = {};

async function check(name, act) {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error('it does not come')), 20000));
  try { results[name] = await Promise.race([act(), late]) } catch (error) { results[name] = String(error) }
}

// Bytes that differ from stream to stream and from place to place.
function pattern(length, seed) {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length; at++) bytes[at] = Math.imul(at + seed, 2654435761) >>> 24;
  return bytes;
}

async function echoes(session, sent) {
  const {readable, writable} = await session.createBidirectionalStream();
  const writer = writable.getWriter();
  const writing = writer.write(sent).then(() => writer.close());
  const got = new Uint8Array(await new Response(readable).arrayBuffer());
  await writing;
  return got.length === sent.length && got.every((byte, at) => byte === sent[at]);
}

async function run() {
  const session = new WebTransport(base + '/session', options);
  await check('session', async () => { await session.ready; return 'ok' });
  if (results.session !== 'ok') return;
  await check('3 MB on a stream', async () => await echoes(session, pattern(3000000, 1)) ? 'ok' : 'other bytes');
  await check('50 streams side by side', async () => {
    const all = await Promise.all(Array.from({length: 50}, (_, n) => echoes(session, pattern(n * n * 40, n))));
    return all.every(same => same) ? 'ok' : 'other bytes';
  });
  await check('100 datagrams', async () => {
    const writer = session.datagrams.writable.getWriter();
    const reader = session.datagrams.readable.getReader();
    for (let number = 0; number < 100; number++) {
      // A lost one is sent again, and what comes late is passed over.
      const timer = setInterval(() => writer.write(pattern(200, number)), 200);
      writer.write(pattern(200, number));
      for (;;) {
        const {value} = await reader.read();
        if (value.length === 200 && value.every((byte, at) => byte === pattern(200, number)[at])) break;
      }
      clearInterval(timer);
    }
    return 'ok';
  });
  await check('code of a service that is not there', async () => {
    const other = new WebTransport(base + '/down', options);
    await other.ready;
    const {readable, writable} = await other.createBidirectionalStream();
    writable.getWriter().write(pattern(10, 1)).catch(() => {});
    try { return `no reset, but ${(await readable.getReader().read()).value}` }
    catch (error) { return error.streamErrorCode === 2 ? 'ok' : `${error}, code ${error.streamErrorCode}` }
    finally { other.close() }
  });
  await check('page of another origin', async () => {
    const other = new WebTransport(base + '/elsewhere', options);
    try { await other.ready; return 'it has a session' } catch { return 'ok' }
  });
  await check('closed by the page', async () => {
    session.close({closeCode: 3, reason: 'page'});
    await session.closed;
    return 'ok';
  });
}
run().finally(() => fetch('/result', {method: 'POST', body: JSON.stringify(results)}));
</script>"""

CONFIG = """listen = "127.0.0.1:%d"
certificate = "cert.pem"
key = "key.pem"
[log]
access = "access.log"
[[route]]
path = "/session"
webtransport = { origins = "%s", to = "tcp://127.0.0.1:%d", datagrams-to = "udp://127.0.0.1:%d" }
[[route]]
path = "/down"
webtransport = { origins = "%s", to = "tcp://127.0.0.1:%d" }
[[route]]
path = "/elsewhere"
webtransport = { origins = "https://www.example.org", to = "tcp://127.0.0.1:%d" }
[[route]]
path = "/try"
webtransport = { origins = "https://127.0.0.1:%d", to = "echo:", datagrams-to = "echo:", test-page = true }
"""


class Tcp(socketserver.BaseRequestHandler):
    """Sends back what comes on a connection, and its end."""

    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Udp(socketserver.BaseRequestHandler):
    """Sends a datagram back."""

    def handle(self):
        data, sender = self.request
        sender.sendto(data, self.client_address)


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def wait_for(port):
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE_S:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
    raise TimeoutError("the gateway does not listen")


def key_hash(folder):
    """The hash by which Chromium trusts the key of a certificate."""
    public = ["openssl", "pkey", "-in", folder / "key.pem", "-pubout", "-outform", "der"]
    der = subprocess.run(public, check=True, stdout=subprocess.PIPE).stdout
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def title_of(debugging, page):
    """The title of an open page; None while it is not there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{debugging}/json/list", timeout=5) as answer:
            return next((one["title"] for one in json.load(answer) if one["url"] == page), None)
    except OSError:
        return None


def try_page(folder, port):
    """Opens the gateway's test page, and waits for the title that says how it went."""
    page, debugging = f"https://127.0.0.1:{port}/try", free_port(socket.SOCK_STREAM)
    arguments = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'trying'}",
        "--disable-background-networking", f"--remote-debugging-port={debugging}", "--webtransport-developer-mode",
        f"--ignore-certificate-errors-spki-list={key_hash(folder)}", page,
    ]
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        begun, title = time.monotonic(), None
        while time.monotonic() - begun < webtransport.PATIENCE_S:
            title = title_of(debugging, page)
            if title and title.startswith(("passed", "failed")):
                break
            time.sleep(0.2)
    finally:
        program.terminate()
        program.wait()
    return "ok" if title == "passed" else f"{title}"


def main(tiderace):
    socketserver.ThreadingTCPServer.daemon_threads = True
    # As many connections come at once as the page opens streams.
    socketserver.ThreadingTCPServer.request_queue_size = 128
    tcp = serve(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tcp))
    udp = serve(socketserver.ThreadingUDPServer(("127.0.0.1", 0), Udp))
    port, down = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        digest = webtransport.certificate(folder)
        pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), webtransport.Site)
        origin = f"http://localhost:{pages.server_port}"
        (folder / "edge.toml").write_text(CONFIG % (port, origin, tcp, udp, origin, down, tcp, port))
        webtransport.Site.page = (PAGE % (list(digest), port)).encode()
        gateway = subprocess.Popen([tiderace, "edge", "run", "--config", folder / "edge.toml"])
        try:
            wait_for(port)
            results = webtransport.browse(folder, pages)
            results["test page"] = try_page(folder, port)
        finally:
            gateway.terminate()
            gateway.wait(PATIENCE_S)
        log = (folder / "access.log").read_text()
    for what, value in results.items():
        print(f"measured {what}, Chromium: {value}", flush=True)
    if len(results) < 8 or any(value != "ok" for value in results.values()):
        print(log, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
