"""Chromium against the WebTransport server of the example `echo_server`: streams of all kinds, datagrams, resets, close.

    webtransport.py ECHO_SERVER

Needs `chromium` and `openssl` on the path. The certificate lives for ten days and is named by its hash, as pages may do
(serverCertificateHashes). Prints lines `measured WHAT: VALUE`; ends with 1 when one is not `ok`.
"""

import hashlib
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

PATIENCE_S = 120

PAGE = """<!doctype html><title>sessions</title><script>
const hash = Uint8Array.from(%s);
const bytes = text => new TextEncoder().encode(text);
const text = async stream => await new Response(stream).text();
const results = {};

async function check(name, act) {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error('it does not come')), 20000));
  try { results[name] = await Promise.race([act(), late]) } catch (error) { results[name] = String(error) }
}

function ask(session) {
  return async data => {
    const {readable, writable} = await session.createBidirectionalStream();
    const writer = writable.getWriter();
    writer.write(data);
    await writer.close();
    return text(readable);
  };
}

async function run() {
  const options = {serverCertificateHashes: [{algorithm: 'sha-256', value: hash}]};
  const session = new WebTransport('https://127.0.0.1:%d/echo', options);
  await check('session', async () => { await session.ready; return 'ok' });
  if (results.session !== 'ok') return;
  const bidi = ask(session);
  await check('bidirectional stream', async () => await bidi(bytes('hello')) === 'hello' ? 'ok' : 'other text');
  await check('3 MB on a stream', async () => {
    const long = 'x'.repeat(3000000);
    return await bidi(bytes(long)) === long ? 'ok' : 'other text';
  });
  // Within the 100 that the server's profile permits: Chromium fails at once beyond it.
  await check('50 streams side by side', async () => {
    const all = await Promise.all(Array.from({length: 50}, (_, n) => bidi(bytes(`stream ${n}`))));
    return all.every((got, n) => got === `stream ${n}`) ? 'ok' : 'other text';
  });
  await check('unidirectional streams', async () => {
    const writer = (await session.createUnidirectionalStream()).getWriter();
    writer.write(bytes('one way'));
    await writer.close();
    const {value} = await session.incomingUnidirectionalStreams.getReader().read();
    return await text(value) === 'one way' ? 'ok' : 'other text';
  });
  await check('stream of the server', async () => {
    await bidi(bytes('open'));
    const {value} = await session.incomingBidirectionalStreams.getReader().read();
    return await text(value.readable) === 'hi' ? 'ok' : 'other text';
  });
  await check('datagrams', async () => {
    const writer = session.datagrams.writable.getWriter();
    const timer = setInterval(() => writer.write(bytes('datagram')), 20);
    const {value} = await session.datagrams.readable.getReader().read();
    clearInterval(timer);
    return new TextDecoder().decode(value) === 'datagram' ? 'ok' : 'other text';
  });
  await check('code of a reset', async () => {
    const {readable, writable} = await session.createBidirectionalStream();
    const writer = writable.getWriter();
    writer.write(bytes('reset'));
    await writer.close();
    try { return `no reset, but ${(await readable.getReader().read()).value}` }
    catch (error) { return error.streamErrorCode === 42 ? 'ok' : `${error}, code ${error.streamErrorCode}` }
  });
  await check('close by the server', async () => {
    const writer = (await session.createUnidirectionalStream()).getWriter();
    writer.write(bytes('close'));
    await writer.close();
    const {closeCode, reason} = await session.closed;
    return closeCode === 7 && reason === 'bye' ? 'ok' : `${closeCode} ${reason}`;
  });
  await check('another session, closed by the page', async () => {
    const other = new WebTransport('https://127.0.0.1:%d/echo', options);
    await other.ready;
    const got = await ask(other)(bytes('again'));
    other.close({closeCode: 3, reason: 'page'});
    await other.closed;
    return got === 'again' ? 'ok' : 'other text';
  });
}
run().finally(() => fetch('/result', {method: 'POST', body: JSON.stringify(results)}));
</script>"""


def certificate(folder):
    """A certificate of ten days, and the hash of it."""
    arguments = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "10", "-subj", "/CN=localhost"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *arguments, *files], check=True, stderr=subprocess.DEVNULL)
    der = subprocess.run(
        ["openssl", "x509", "-in", folder / "cert.pem", "-outform", "der"], check=True, stdout=subprocess.PIPE
    ).stdout
    return hashlib.sha256(der).digest()


class Site(http.server.BaseHTTPRequestHandler):
    """The page, and the place where it reports."""

    page = b""
    result = None
    has_come = threading.Event()

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(Site.page)

    def do_POST(self):
        Site.result = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()
        Site.has_come.set()

    def log_message(self, *_):
        pass


def browse(folder, site):
    """Opens the page that `site` has, and waits for its report."""
    threading.Thread(target=site.serve_forever, daemon=True).start()
    page = f"http://localhost:{site.server_port}/"
    arguments = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
        "--disable-background-networking", "--host-resolver-rules=MAP localhost 127.0.0.1", page,
    ]
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    has_come = Site.has_come.wait(PATIENCE_S)
    program.terminate()
    _, log = program.communicate()
    if not has_come:
        print("chromium:", log.decode(errors="replace")[-2000:], file=sys.stderr)
    return Site.result or {}


def main(echo_server):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        digest = certificate(folder)
        server = subprocess.Popen(
            [echo_server, "127.0.0.1:0", folder / "cert.pem", folder / "key.pem"], stdout=subprocess.PIPE, text=True
        )
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            Site.page = (PAGE % (list(digest), port, port)).encode()
            results = browse(folder, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site))
        finally:
            server.kill()
            log = server.communicate()[0]
    for what, value in results.items():
        print(f"measured {what}, Chromium: {value}", flush=True)
    if len(results) < 10 or any(value != "ok" for value in results.values()):
        print(log, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
