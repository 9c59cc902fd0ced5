"""Sessions of WebTransport by aioquic, in either role. README.md in the folder above has what both do.

    peer.py server --listen ADDRESS --cert PEM --key PEM    until standard input ends
    peer.py client --connect ADDRESS --ca PEM

aioquic has streams and datagrams of sessions, and neither sessions that end nor capsules: WT_CLOSE_SESSION is written and read here. So are
the fields of application protocols.
"""

import argparse
import asyncio
import json
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import FrameType, H3Connection
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived, WebTransportStreamDataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

STREAMS, DATAGRAMS, PATIENCE_S = 25, 1000, 60
ASK, ANSWER, SERVER_ASK, CLIENT_ANSWER, UP, DOWN, COMPLETE, PLEASE_CLOSE = range(1, 9)
# Application protocols that a client offers, the preferred one first, and the one that a server has: strings of structured fields (RFC 9651).
OFFERED, PROTOCOL = b'"sessions-2", "sessions-1"', b'"sessions-1"'
CLOSE_SESSION = 0x2843  # draft-ietf-webtrans-http3 §6
PERIOD = 65_521


def make_pattern():
    state, once = 1, bytearray()
    for _ in range(PERIOD):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        once.append(state >> 16 & 0xFF)
    return bytes(once) * 9


PATTERN = make_pattern()


def pattern(kind, index, length):
    begin = (kind * 7_919 + index * 1_009) % PERIOD
    return PATTERN[begin : begin + length]


def content(kind, index):
    """What a direction of a stream carries: its kind, its number, and bytes of the pattern."""
    length = 0 if kind in (COMPLETE, PLEASE_CLOSE) else 500_000 if index == STREAMS - 1 else index * index * 97
    return bytes([kind]) + index.to_bytes(4, "big") + pattern(kind, index, length)


def datagram(index):
    return index.to_bytes(4, "big") + pattern(9, index, index % 1000)


class Session:
    """A session of either end: what has come of it, and what is sent."""

    def __init__(self, peer, stream_id, path, is_client):
        self.peer, self.id, self.path, self.is_client = peer, stream_id, path, is_client
        self.report = {"path": path, "streams": 0, "bytes": 0, "datagrams": 0, "resent": 0, "draft": None, "protocol": None, "error": None}
        self.parts, self.seen, self.echoed, self.capsules = {}, set(), set(), b""
        self.asked = {}
        self.closed = asyncio.get_running_loop().create_future()
        self.complete = asyncio.Event()
        self.datagram_came = asyncio.Event()

    def agree(self, protocol):
        """Notes the application protocol, a string of a structured field."""
        self.report["protocol"] = protocol.decode().strip('"')

    def wrong(self, what):
        self.report["error"] = self.report["error"] or what

    def end(self, code, reason, how):
        if not self.closed.done():
            self.closed.set_result({"code": code, "reason": reason, "how": how})

    def open(self, kind, index, unidirectional=False):
        stream = self.peer.http.create_webtransport_stream(self.id, is_unidirectional=unidirectional)
        if not unidirectional:
            self.asked[stream] = index
            # Defect of aioquic 1.7.2: it reads what comes back on a bidirectional stream of its own as frames of HTTP/3.
            # Web Platform Tests mark such streams in the same way.
            with self.peer.http._get_or_create_stream(stream) as its:
                its.frame_type, its.session_id = FrameType.WEBTRANSPORT_STREAM, self.id
        self.peer.quic.send_stream_data(stream, content(kind, index), end_stream=True)

    def open_all(self):
        for index in range(STREAMS):
            self.open(ASK if self.is_client else SERVER_ASK, index)
            self.open(UP if self.is_client else DOWN, index, unidirectional=True)

    def came(self, stream, data, ended):
        """Collects what comes on a stream, and acts at its end."""
        parts = self.parts.setdefault(stream, bytearray())
        parts += data
        if not ended:
            return
        got = bytes(self.parts.pop(stream))
        if got == content(PLEASE_CLOSE, 0) and not self.is_client:
            self.close(7, "the server is done")
            return
        if got == content(COMPLETE, 0) and self.is_client:
            self.complete.set()
            return
        # Bits of the number of a stream: 1 is a server's, 2 unidirectional (RFC 9000 §2.1).
        if stream & 2:
            kind = DOWN if self.is_client else UP
        elif stream in self.asked:
            kind = ANSWER if self.is_client else CLIENT_ANSWER
        else:
            kind = SERVER_ASK if self.is_client else ASK
        index = int.from_bytes(got[1:5], "big")
        if index >= STREAMS or got != content(kind, index) or (kind, index) in self.seen:
            self.wrong(f"stream {stream} of kind {kind} differs, or comes twice")
            return
        if self.asked.get(stream, index) != index:
            self.wrong(f"the answer on stream {stream} is one of another")
        self.seen.add((kind, index))
        self.report["streams"] += 1
        self.report["bytes"] += len(got)
        if kind in (ASK, SERVER_ASK):
            self.peer.quic.send_stream_data(stream, content(kind + 1, index), end_stream=True)
        if not self.is_client and self.report["streams"] == 3 * STREAMS:
            self.open(COMPLETE, 0, unidirectional=True)

    def datagram(self, data):
        index = int.from_bytes(data[:4], "big")
        if index >= DATAGRAMS or data != datagram(index):
            self.wrong(f"datagram {index} has other bytes")
        self.echoed.add(index)
        self.report["datagrams"] = len(self.echoed)
        if self.is_client:
            self.datagram_came.set()
        else:
            self.peer.http.send_datagram(self.id, data)

    def capsule_data(self, data, ended):
        """Reads capsules of the request's stream (RFC 9297 §3.2)."""
        self.capsules += data
        while True:
            buffer = Buffer(data=self.capsules)
            try:
                kind, length = buffer.pull_uint_var(), buffer.pull_uint_var()
                value = buffer.pull_bytes(length)
            except ValueError:
                break
            self.capsules = self.capsules[buffer.tell() :]
            if kind == CLOSE_SESSION:
                self.end(int.from_bytes(value[:4], "big"), value[4:].decode(), "WT_CLOSE_SESSION")
        if ended:
            self.end(None, "", "the request ended without a capsule")

    def close(self, code, reason):
        value = code.to_bytes(4, "big") + reason.encode()
        self.peer.http.send_data(self.id, encode_uint_var(CLOSE_SESSION) + encode_uint_var(len(value)) + value, end_stream=True)
        self.peer.transmit()
        self.end(code, reason, "closed here")

    async def exchange(self):
        """Sends datagrams until all have come back."""
        sent = set()
        while len(self.echoed) < DATAGRAMS and not self.closed.done():
            while len(sent - self.echoed) < 32 and len(sent) < DATAGRAMS:
                self.peer.http.send_datagram(self.id, datagram(len(sent)))
                sent.add(len(sent))
            self.peer.transmit()
            self.datagram_came.clear()
            try:
                await asyncio.wait_for(self.datagram_came.wait(), 1)
            except TimeoutError:
                for index in sent - self.echoed:
                    self.peer.http.send_datagram(self.id, datagram(index))
                    self.report["resent"] += 1

    async def all_has_come(self):
        while self.report["streams"] < 3 * STREAMS or not self.complete.is_set():
            if self.closed.done():
                self.wrong("the session ended early")
                return
            await asyncio.sleep(0.02)

    async def print(self):
        try:
            self.report["close"] = await asyncio.wait_for(self.closed, PATIENCE_S)
        except TimeoutError:
            self.report["close"] = {"code": None, "reason": "", "how": "the session does not end"}
        print(json.dumps(self.report), flush=True)


class Peer(QuicConnectionProtocol):
    """A connection of either end, with its sessions by the number of their request's stream."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.quic = self._quic
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.sessions, self.responses = {}, {}

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for session in self.sessions.values():
                session.end(None, "", f"the connection ended: {event.error_code:#x} {event.reason_phrase}")
            for response in self.responses.values():
                if not response.done():
                    response.set_exception(ConnectionError(f"{event.error_code:#x} {event.reason_phrase}"))
        if isinstance(event, StreamReset) and event.stream_id in self.sessions:
            self.sessions[event.stream_id].end(None, "", f"the request was reset: {event.error_code:#x}")
        for one in self.http.handle_event(event):
            self.http_event(one)
        self.transmit()

    def http_event(self, event):
        if isinstance(event, HeadersReceived):
            fields = dict(event.headers)
            if event.stream_id in self.responses:
                self.responses[event.stream_id].set_result((fields[b":status"], fields.get(b"wt-protocol")))
            elif fields.get(b":protocol") == b"webtransport":
                response = [(b":status", b"200"), (b"sec-webtransport-http3-draft", b"draft02")]
                session = self.begin(event.stream_id, fields[b":path"].decode(), False)
                if PROTOCOL in [one.strip() for one in fields.get(b"wt-available-protocols", b"").split(b",")]:
                    response.append((b"wt-protocol", PROTOCOL))
                    session.agree(PROTOCOL)
                self.http.send_headers(event.stream_id, response)
                if session.path == "/streams":
                    session.open_all()
                asyncio.ensure_future(session.print())
            else:
                self.http.send_headers(event.stream_id, [(b":status", b"404")], end_stream=True)
        elif isinstance(event, DataReceived) and event.stream_id in self.sessions:
            self.sessions[event.stream_id].capsule_data(event.data, event.stream_ended)
        elif isinstance(event, WebTransportStreamDataReceived) and event.session_id in self.sessions:
            self.sessions[event.session_id].came(event.stream_id, event.data, event.stream_ended)
        elif isinstance(event, DatagramReceived) and event.stream_id in self.sessions:
            self.sessions[event.stream_id].datagram(event.data)

    def begin(self, stream, path, is_client):
        self.sessions[stream] = Session(self, stream, path, is_client)
        return self.sessions[stream]

    async def request(self, authority, path):
        stream = self.quic.get_next_available_stream_id()
        self.responses[stream] = asyncio.get_running_loop().create_future()
        session = self.begin(stream, path, True)
        fields = {":method": "CONNECT", ":scheme": "https", ":authority": authority, ":path": path, ":protocol": "webtransport"}
        fields["sec-webtransport-http3-draft02"] = "1"
        fields["wt-available-protocols"] = OFFERED.decode()
        # Extended CONNECT is for after the server's settings (RFC 8441 §3).
        while not self.http.received_settings:
            await asyncio.sleep(0.01)
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields.items()])
        self.transmit()
        status, protocol = await asyncio.wait_for(self.responses[stream], PATIENCE_S)
        if status != b"200":
            raise ConnectionError(f"no session: status {status}")
        if protocol:
            session.agree(protocol)
        return session


def configuration(is_client):
    return QuicConfiguration(is_client=is_client, alpn_protocols=["h3"], max_datagram_frame_size=65536)


async def run_server(listen, cert, key):
    config = configuration(False)
    config.load_cert_chain(cert, key)
    host, _, port = listen.rpartition(":")
    server = await serve(host, int(port), configuration=config, create_protocol=Peer)
    address = server._transport.get_extra_info("sockname")
    print(json.dumps({"ready": True, "address": f"{address[0]}:{address[1]}"}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


async def run_client(address, ca):
    config = configuration(True)
    config.load_verify_locations(ca)
    host, _, port = address.rpartition(":")

    async def begin(peer, path):
        return await peer.request(address, path)

    async with connect(host, int(port), configuration=config, create_protocol=Peer) as peer:
        session = await begin(peer, "/streams")
        session.open_all()
        peer.transmit()
        try:
            await asyncio.wait_for(asyncio.gather(session.exchange(), session.all_has_come()), PATIENCE_S)
        except TimeoutError:
            session.wrong("not all has come, or the server does not say that it has all")
        session.close(4, "the client is done")
        await session.print()
        await asyncio.sleep(0.3)
    async with connect(host, int(port), configuration=config, create_protocol=Peer) as peer:
        session = await begin(peer, "/close")
        session.open(PLEASE_CLOSE, 0, unidirectional=True)
        peer.transmit()
        await session.print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    server, client = roles.add_parser("server"), roles.add_parser("client")
    for name in ("--listen", "--cert", "--key"):
        server.add_argument(name, required=True)
    for name in ("--connect", "--ca"):
        client.add_argument(name, required=True)
    arguments = parser.parse_args()
    if arguments.role == "server":
        asyncio.run(run_server(arguments.listen, arguments.cert, arguments.key))
    else:
        asyncio.run(run_client(arguments.connect, arguments.ca))


if __name__ == "__main__":
    main()
