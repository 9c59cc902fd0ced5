"""Real clients in front of the edge: a page with 100 objects over HTTP/3, and over HTTP/2 when UDP is cut.

    run.py TIDERACE QUIC_GO_CLIENT

Needs `chromium` and `openssl` on the path, and the packages of requirements.txt. Prints lines `measured WHAT: VALUE`; what went
wrong goes to the standard error.
"""

import asyncio
import base64
import collections
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import curl_cffi
from curl_cffi import CurlHttpVersion, CurlOpt
from curl_cffi.requests import AsyncSession

import aioquic_h3
from wall import Wall

OBJECTS = 100
SIZE = 20_000
VERSIONS = {1: "http/1.0", 2: "http/1.1", 3: "h2", 30: "h3", 31: "h3"}

# Every object by its own request, as many at a time as the browser likes; what came, by protocol, ends up in the document.
PAGE = """<!doctype html><title>objects</title><pre id=result>loading</pre><script>
performance.setResourceTimingBufferSize(1000);
const names = Array.from({length: %d}, (_, n) => new URL(`/object/${n}`, location).href);
const sizes = names.map(name => fetch(name).then(r => r.arrayBuffer()).then(b => b.byteLength, e => -1));
Promise.all(sizes).then(sizes => {
  const came = {page: performance.getEntriesByType('navigation')[0].nextHopProtocol, bad: 0};
  sizes.forEach(size => { if (size !== %d) came.bad++; });
  for (const name of names) {
    const entry = performance.getEntriesByName(name)[0];
    const protocol = entry ? entry.nextHopProtocol : 'none';
    came[protocol] = (came[protocol] || 0) + 1;
  }
  document.getElementById('result').textContent = JSON.stringify(came);
});
</script>"""


def measured(what, value):
    print(f"measured {what}: {value}", flush=True)


def certificate(folder):
    """A root, and a certificate of localhost that it has signed; the hash of its key, as Chromium names it."""
    quiet = {"check": True, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    root = ["-keyout", "root-key.pem", "-out", "root.pem", "-subj", "/CN=root of a test", "-days", "30"]
    subprocess.run(["openssl", "req", "-x509", *ec, *root], **quiet)
    own = ["-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost"]
    subprocess.run(["openssl", "req", *ec, *own], **quiet)
    (folder / "extensions").write_text("subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth\n")
    sign = ["-req", "-in", "request.pem", "-CA", "root.pem", "-CAkey", "root-key.pem", "-CAcreateserial"]
    subprocess.run(["openssl", "x509", *sign, "-extfile", "extensions", "-days", "10", "-out", "leaf.pem"], **quiet)
    (folder / "cert.pem").write_text((folder / "leaf.pem").read_text() + (folder / "root.pem").read_text())
    public = subprocess.run(["openssl", "x509", "-in", "leaf.pem", "-pubkey", "-noout"], check=True, cwd=folder, capture_output=True)
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "der"], input=public.stdout, check=True, capture_output=True)
    return base64.b64encode(hashlib.sha256(der.stdout).digest()).decode()


def site(folder):
    (folder / "www" / "object").mkdir(parents=True)
    (folder / "www" / "index.html").write_text(PAGE % (OBJECTS, SIZE))
    for number in range(OBJECTS):
        (folder / "www" / "object" / str(number)).write_bytes(bytes([number]) * SIZE)
    (folder / "edge.toml").write_text(
        'listen = "127.0.0.1:0"\ncertificate = "cert.pem"\nkey = "key.pem"\n'
        '[log]\naccess = "access.log"\n[[route]]\nfiles = "www"\n'
    )


def logged(folder, skip):
    """Requests by protocol in the access log, after the first `skip` lines; and how many lines there are."""
    time.sleep(0.5)
    lines = (folder / "access.log").read_text().splitlines()
    return collections.Counter(json.loads(line)["protocol"] for line in lines[skip:]), len(lines)


async def curl(folder, wall, version):
    """Loads the page, then all objects; gives how many came as they should, by version, and the seconds to the page."""
    came, begun = collections.Counter(), time.monotonic()
    address = {CurlOpt.RESOLVE: [f"localhost:{wall.port}:127.0.0.1"]}
    async with AsyncSession(verify=str(folder / "root.pem"), max_clients=OBJECTS, curl_options=address) as session:
        await session.get(f"https://localhost:{wall.port}/", http_version=version, timeout=60)
        first = time.monotonic() - begun

        async def get(number):
            answer = await session.get(
                f"https://localhost:{wall.port}/object/{number}", http_version=version, timeout=60
            )
            if answer.status_code == 200 and len(answer.content) == SIZE:
                came[VERSIONS.get(answer.http_version, answer.http_version)] += 1

        results = await asyncio.gather(*(get(n) for n in range(OBJECTS)), return_exceptions=True)
    for error in {str(result) for result in results if result is not None}:
        print("curl:", error, file=sys.stderr)
    return came, first


async def chromium(folder, wall, key_hash, forced):
    """What the page says about how it and its objects came."""
    with tempfile.TemporaryDirectory() as profile:
        arguments = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
            f"--ignore-certificate-errors-spki-list={key_hash}", "--enable-quic", "--disable-background-networking",
            # The site has this address alone, and nobody else is to be asked.
            "--host-resolver-rules=MAP localhost 127.0.0.1",
            "--virtual-time-budget=60000", "--timeout=60000", "--dump-dom",
        ]
        if forced:
            arguments.append(f"--origin-to-force-quic-on=localhost:{wall.port}")
        program = await asyncio.create_subprocess_exec(
            *arguments, f"https://localhost:{wall.port}/", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            page, log = await asyncio.wait_for(program.communicate(), 120)
        except asyncio.TimeoutError:
            program.kill()
            print("chromium did not end", file=sys.stderr)
            return {}
    text = page.decode(errors="replace")
    inside = text.partition("<pre id=\"result\">")[2].partition("</pre>")[0]
    if not inside.startswith("{"):
        print("chromium:", text[:500], log.decode(errors="replace")[-2000:], file=sys.stderr)
        return {}
    return json.loads(inside)


async def main(tiderace, quic_go):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        key_hash = certificate(folder)
        site(folder)
        edge = await asyncio.create_subprocess_exec(
            tiderace, "edge", "run", "--config", folder / "edge.toml", stdout=subprocess.PIPE
        )
        try:
            line = (await edge.stdout.readline()).decode()
            port = int(line.rpartition(":")[2])
            await clients(folder, port, key_hash, quic_go)
        finally:
            edge.terminate()
            await edge.wait()


async def clients(folder, port, key_hash, quic_go):
    lines = 0
    program = await asyncio.create_subprocess_exec(
        quic_go, folder / "root.pem", f"https://localhost:{port}", str(OBJECTS), str(SIZE), stdout=subprocess.PIPE
    )
    measured("objects over HTTP/3, quic-go", int((await program.communicate())[0] or 0))
    measured("objects over HTTP/3, aioquic", await aioquic_h3.load(folder / "root.pem", port, OBJECTS, SIZE))

    print("curl is", curl_cffi.__curl_version__, file=sys.stderr)
    wall = await Wall(port).start()
    _, lines = logged(folder, lines)
    # On a busy machine curl's race may be won by TCP: it is to show here that HTTP/3 works, and below that it gives way.
    came, first = await curl(folder, wall, CurlHttpVersion.V3ONLY)
    seen, lines = logged(folder, lines)
    measured("objects over HTTP/3, curl", min(came["h3"], seen["h3"]))
    measured("ms to the page, curl", first * 1e3)
    wall.cut()
    came, first = await curl(folder, wall, CurlHttpVersion.V3)
    seen, lines = logged(folder, lines)
    measured("objects over HTTP/2 without UDP, curl", min(came["h2"], seen["h2"]))
    measured("ms to the page without UDP, curl", first * 1e3)

    wall = await Wall(port).start()
    came = await chromium(folder, wall, key_hash, forced=True)
    seen, lines = logged(folder, lines)
    good = came.get("h3", 0) if came.get("bad") == 0 and came.get("page") == "h3" else 0
    measured("objects over HTTP/3, Chromium", min(good, seen["h3"]))
    wall.cut()
    came = await chromium(folder, wall, key_hash, forced=False)
    seen, lines = logged(folder, lines)
    measured("objects over HTTP/2 without UDP, Chromium", min(came.get("h2", 0), seen["h2"]) if came.get("bad") == 0 else 0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
