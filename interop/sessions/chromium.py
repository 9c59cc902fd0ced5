"""Sessions of WebTransport by a page in a headless Chromium, as a client. README.md in this folder has what it does.

    chromium.py client --connect ADDRESS --ca PEM

The page names the certificate by its hash. Needs `chromium` and `openssl` on the path.
"""

import argparse
import hashlib
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))
import webtransport  # noqa: E402

PAGE = """<!doctype html><title>sessions</title><script>
const hash = Uint8Array.from(%s);
const options = {serverCertificateHashes: [{algorithm: 'sha-256', value: hash}]};
const base = 'https://%s';
const STREAMS = 25, DATAGRAMS = 1000, PERIOD = 65521, PATIENCE = 60000;
const [ASK, ANSWER, SERVER_ASK, CLIENT_ANSWER, UP, DOWN, COMPLETE, PLEASE_CLOSE] = [1, 2, 3, 4, 5, 6, 7, 8];

const PATTERN = new Uint8Array(PERIOD);
for (let state = 1, at = 0; at < PERIOD; at++) {
  state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
  PATTERN[at] = state >>> 16;
}

function numbered(first, kind, index, length) {
  const bytes = new Uint8Array(first.length + 4 + length), begin = (kind * 7919 + index * 1009) %% PERIOD;
  bytes.set(first);
  new DataView(bytes.buffer).setUint32(first.length, index);
  for (let at = 0; at < length; at++) bytes[first.length + 4 + at] = PATTERN[(begin + at) %% PERIOD];
  return bytes;
}
function content(kind, index) {
  const length = kind >= COMPLETE ? 0 : index === STREAMS - 1 ? 500000 : index * index * 97;
  return numbered([kind], kind, index, length);
}
const datagram = index => numbered([], 9, index, index %% 1000);
const equal = (one, other) => one.length === other.length && one.every((byte, at) => byte === other[at]);
const read = async stream => new Uint8Array(await new Response(stream).arrayBuffer());
async function write(stream, data) {
  const writer = stream.getWriter();
  writer.write(data).catch(() => {});
  await writer.close();
}
function within(promise, what) {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error(what)), PATIENCE));
  return Promise.race([promise, late]);
}
const report = path => ({path, streams: 0, bytes: 0, datagrams: 0, resent: 0, draft: null, error: null, close: {code: null, reason: '', how: ''}});

async function carry(session, its) {
  const seen = new Set();
  const wrong = what => { its.error = its.error || String(what) };
  const check = (kind, got) => {
    const index = got.length < 5 ? STREAMS : new DataView(got.buffer, got.byteOffset).getUint32(1);
    if (index >= STREAMS || !equal(got, content(kind, index))) throw new Error(`a stream of kind ${kind} differs`);
    if (seen.has(kind * STREAMS + index)) throw new Error(`stream ${index} of kind ${kind} came twice`);
    seen.add(kind * STREAMS + index);
    its.streams++;
    its.bytes += got.length;
    return index;
  };
  let allHasCome;
  const complete = new Promise(done => { allHasCome = done });
  const accept = async (incoming, act) => {
    const reader = incoming.getReader();
    for (;;) {
      const {value, done} = await reader.read().catch(() => ({done: true}));
      if (done) return;
      act(value).catch(wrong);
    }
  };
  accept(session.incomingBidirectionalStreams, async ({readable, writable}) => {
    await write(writable, content(CLIENT_ANSWER, check(SERVER_ASK, await read(readable))));
  });
  accept(session.incomingUnidirectionalStreams, async stream => {
    const got = await read(stream);
    if (equal(got, content(COMPLETE, 0))) allHasCome(); else check(DOWN, got);
  });
  const asks = Array.from({length: STREAMS}, async (_, index) => {
    const {readable, writable} = await session.createBidirectionalStream();
    const [got] = await Promise.all([read(readable), write(writable, content(ASK, index))]);
    if (check(ANSWER, got) !== index) throw new Error(`the answer of another stream than ${index}`);
  });
  const ups = Array.from({length: STREAMS}, async (_, index) => write(await session.createUnidirectionalStream(), content(UP, index)));
  const exchange = async () => {
    const writer = session.datagrams.writable.getWriter(), reader = session.datagrams.readable.getReader();
    // By default Chromium keeps one datagram that the page has not read, and drops the others.
    session.datagrams.incomingHighWaterMark = 64;
    const back = new Set(), inFlight = new Set();
    let next = 0, reading = reader.read();
    while (back.size < DATAGRAMS) {
      for (; inFlight.size < 32 && next < DATAGRAMS; next++) {
        inFlight.add(next);
        await writer.write(datagram(next));
      }
      let timer;
      const late = new Promise(done => { timer = setTimeout(done, 1000) });
      const came = await Promise.race([reading, late]);
      clearTimeout(timer);
      if (!came) {
        for (const index of inFlight) { its.resent++; await writer.write(datagram(index)) }
        continue;
      }
      if (came.done) throw new Error('the session ended early');
      reading = reader.read();
      const index = new DataView(came.value.buffer, came.value.byteOffset).getUint32(0);
      if (!equal(came.value, datagram(index))) throw new Error(`datagram ${index} has other bytes`);
      back.add(index);
      inFlight.delete(index);
      its.datagrams = back.size;
    }
  };
  try {
    await within(Promise.all([...asks, ...ups, exchange(), complete]), 'not all has come, or the server does not say that it has all');
  } catch (error) { wrong(error) }
}

async function run() {
  const its = report('/streams');
  try {
    const session = new WebTransport(base + its.path, options);
    await session.ready;
    await carry(session, its);
    its.close = {code: 4, reason: 'the client is done', how: 'closed here'};
    session.close({closeCode: 4, reason: 'the client is done'});
    await session.closed.catch(() => {});
  } catch (error) { its.error = its.error || String(error) }
  const other = report('/close');
  try {
    const session = new WebTransport(base + other.path, options);
    await session.ready;
    write(await session.createUnidirectionalStream(), content(PLEASE_CLOSE, 0)).catch(() => {});
    const {closeCode, reason} = await within(session.closed, 'the session does not end');
    other.close = {code: closeCode, reason, how: 'closed'};
  } catch (error) { other.error = String(error) }
  return [its, other];
}
run().then(reports => fetch('/result', {method: 'POST', body: JSON.stringify(reports)}));
</script>"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    client = parser.add_subparsers(dest="role", required=True).add_parser("client")
    for name in ("--connect", "--ca"):
        client.add_argument(name, required=True)
    arguments = parser.parse_args()
    read = ["openssl", "x509", "-in", arguments.ca, "-outform", "der"]
    digest = hashlib.sha256(subprocess.run(read, check=True, stdout=subprocess.PIPE).stdout).digest()
    webtransport.Site.page = (PAGE % (list(digest), arguments.connect)).encode()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        reports = webtransport.browse(pathlib.Path(folder), http.server.ThreadingHTTPServer(("127.0.0.1", 0), webtransport.Site))
    for report in reports:
        print(json.dumps(report))
    if not reports:
        sys.exit("Chromium reports nothing")


if __name__ == "__main__":
    main()
