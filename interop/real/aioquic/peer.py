"""The peer on aioquic. The contract is in interop/README.md; src/contract.rs states the same for the Rust peers."""

import argparse
import asyncio
import hashlib
import json
import ssl
import sys
import time
from importlib.metadata import version

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

ALPN = "tiderace-interop"
SERVER_NAME = "peer.test"
MAX_TRANSFER = 1 << 30
MAX_LINE = 32
PERIOD = 65521  # Prime, so that no packet or buffer size divides it.
PIECE = 1 << 16


def one_period():
    out, state = bytearray(PERIOD), 1
    for index in range(PERIOD):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out[index] = (state >> 16) & 0xFF
    return bytes(out)


# Twice, so that any piece of up to one period is one slice.
PATTERN = one_period() * 2


def pattern_at(offset, length):
    start = offset % PERIOD
    return PATTERN[start : start + min(length, PERIOD)]


class KeyUpdates:
    """Counts key updates, which aioquic tells nobody about."""

    count = 0

    @classmethod
    def watch(cls):
        update = CryptoPair._update_key

        def counted(self, trigger):
            cls.count += 1
            update(self, trigger)

        CryptoPair._update_key = counted


def configuration(is_client):
    return QuicConfiguration(
        alpn_protocols=[ALPN], is_client=is_client, max_data=1 << 24, max_stream_data=1 << 23, idle_timeout=30
    )


async def write_pattern(writer, length):
    sent = 0
    while sent < length:
        piece = pattern_at(sent, min(PIECE, length - sent))
        writer.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)


async def answer(reader, writer):
    line = await reader.readuntil(b"\n")
    verb, length = line.decode().split()
    length = int(length)
    if len(line) > MAX_LINE or not 0 <= length <= MAX_TRANSFER:
        raise ValueError(f"bad request {line!r}")
    if verb == "GET":
        await write_pattern(writer, length)
    elif verb == "PUT":
        digest, got = hashlib.sha256(), 0
        while piece := await reader.read(PIECE):
            digest.update(piece)
            got += len(piece)
        writer.write(f"{got} {digest.hexdigest()}\n".encode())
    else:
        raise ValueError(f"bad request {line!r}")
    writer.write_eof()


async def run_server(arguments):
    config = configuration(is_client=False)
    config.load_cert_chain(arguments.cert, arguments.key)
    host, port = arguments.listen.rsplit(":", 1)
    tasks = set()

    def on_stream(reader, writer):
        task = asyncio.ensure_future(answer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # Each ticket is good for one connection.
    tickets = {}
    server = await serve(
        host,
        int(port),
        configuration=config,
        retry=arguments.retry,
        stream_handler=on_stream,
        session_ticket_handler=lambda ticket: tickets.__setitem__(ticket.ticket, ticket),
        session_ticket_fetcher=lambda name: tickets.pop(name, None),
    )
    address = server._transport.get_extra_info("sockname")
    print(json.dumps({"ready": True, "address": f"{address[0]}:{address[1]}"}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    return {}


async def get(protocol, length, key_update):
    reader, writer = await protocol.create_stream()
    writer.write(f"GET {length}\n".encode())
    writer.write_eof()
    got, updated = 0, not key_update
    while piece := await reader.read(PERIOD):
        if piece != pattern_at(got, len(piece)):
            raise ValueError(f"wrong byte after {got}")
        got += len(piece)
        if not updated and got >= length // 2:
            updated = True
            protocol.request_key_update()
    if got != length:
        raise ValueError(f"got {got} of {length} bytes")


async def put(protocol, length):
    reader, writer = await protocol.create_stream()
    writer.write(f"PUT {length}\n".encode())
    await write_pattern(writer, length)
    writer.write_eof()
    digest, sent = hashlib.sha256(), 0
    while sent < length:
        piece = pattern_at(sent, length - sent)
        digest.update(piece)
        sent += len(piece)
    got = (await reader.read()).decode().strip()
    if got != f"{length} {digest.hexdigest()}":
        raise ValueError(f"the server got something else: {got}")


async def run_client(arguments):
    config = configuration(is_client=True)
    config.load_verify_locations(arguments.ca)
    config.server_name = SERVER_NAME
    config.verify_mode = ssl.CERT_REQUIRED
    if arguments.chacha20:
        config.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    if arguments.v2:
        config.original_version = QuicProtocolVersion.VERSION_2
        config.supported_versions = [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
    host, port = arguments.connect.rsplit(":", 1)
    # The time in which aioquic closes a connection is not in it: three times the probe timeout, 14 s on a slow path.
    seconds = 0
    tickets = []

    for number in range(arguments.connections):
        start = time.monotonic()
        early = arguments.early and number > 0
        if arguments.resume and number > 0:
            if not tickets:
                raise ValueError("there is no session to resume")
            config.session_ticket = tickets.pop()
        async with connect(
            host, int(port), configuration=config, session_ticket_handler=tickets.append, wait_connected=not early
        ) as protocol:

            async def one():
                if arguments.get:
                    await get(protocol, arguments.get, arguments.key_update)
                if arguments.put:
                    await put(protocol, arguments.put)

            await asyncio.gather(*(one() for _ in range(arguments.streams)))
            seconds += time.monotonic() - start
            if early and not protocol._quic.tls.early_data_accepted:
                raise ValueError("early data was refused")
            if arguments.resume and number > 0 and not protocol._quic.tls.session_resumed:
                raise ValueError("the session was not resumed")
            # The ticket comes after the answer.
            if arguments.resume and number == 0:
                await asyncio.sleep(0.1)
    return {
        "bytes_received": arguments.get * arguments.streams,
        "bytes_sent": arguments.put * arguments.streams,
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    server = roles.add_parser("server")
    server.add_argument("--listen", required=True)
    server.add_argument("--cert", required=True)
    server.add_argument("--key", required=True)
    server.add_argument("--retry", action="store_true")
    server.add_argument("--early", action="store_true")
    client = roles.add_parser("client")
    client.add_argument("--connect", required=True)
    client.add_argument("--ca", required=True)
    client.add_argument("--get", type=int, default=0)
    client.add_argument("--put", type=int, default=0)
    client.add_argument("--streams", type=int, default=1)
    client.add_argument("--key-update", action="store_true")
    client.add_argument("--connections", type=int, default=1)
    for flag in ("resume", "early", "chacha20", "v2", "migrate"):
        client.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()

    KeyUpdates.watch()
    run = run_server if arguments.role == "server" else run_client
    figures = {"ok": True}
    try:
        figures.update(asyncio.run(run(arguments)))
    except Exception as error:  # Whatever it was, the driver must read it.
        figures = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    figures["key_updates"] = KeyUpdates.count
    figures["version"] = f"aioquic {version('aioquic')}"
    print(json.dumps(figures), flush=True)
    sys.exit(0 if figures["ok"] else 1)


main()
