"""The far end of a tunnel, and what its client does through it.

through.py target                  answers datagrams (an empty one with 1,450 bytes), and has 3 MB for each connection
through.py client                  echo requests, datagrams and downloads over IPv4 and IPv6, and packets that are too big
"""

import errno
import os
import socket
import struct
import sys
import threading
import time

TARGETS = ["93.184.216.34", "2a00:1450::34"]
CONTENT = bytes(3_000_000)
LARGE = bytes([7]) * 1_450
# Of Linux, missing in Python.
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def target():
    for address in TARGETS:
        datagrams = socket.socket(family(address), socket.SOCK_DGRAM)
        datagrams.bind((address, 53))
        listener = socket.create_server((address, 80), family=family(address))
        threading.Thread(target=answer, args=(datagrams,), daemon=True).start()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print("listening", flush=True)
    threading.Event().wait()


def answer(datagrams):
    while True:
        payload, client = datagrams.recvfrom(65_536)
        try:
            datagrams.sendto(payload or LARGE, client)
        except OSError:
            # Too big for what the system knows of the path: the next one is sent in fragments.
            pass


def serve(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(CONTENT)


def repeated(attempt):
    """Datagrams may be lost."""
    for _ in range(100):
        try:
            if (found := attempt()) is not None:
                return found
        except TimeoutError:
            pass
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
    sys.exit("no answer")


def exchange(address, payload, expected):
    with socket.socket(family(address), socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(0.5)
        datagrams.connect((address, 53))

        def attempt():
            datagrams.send(payload)
            return datagrams.recv(65_536) == expected or None

        repeated(attempt)


def ping(address):
    is_v6 = ":" in address
    protocol = socket.IPPROTO_ICMPV6 if is_v6 else socket.IPPROTO_ICMP
    with socket.socket(family(address), socket.SOCK_RAW, protocol) as messages:
        messages.settimeout(0.5)
        body = struct.pack("!HH", os.getpid() & 0xFFFF, 1) + b"tiderace"
        message = struct.pack("!BBH", 128 if is_v6 else 8, 0, 0) + body
        if not is_v6:
            # The kernel computes the sum of ICMPv6 alone.
            total = sum(struct.unpack(f"!{len(message) // 2}H", message))
            total = (total & 0xFFFF) + (total >> 16)
            total = (total & 0xFFFF) + (total >> 16)
            message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]

        def attempt():
            messages.sendto(message, (address, 0))
            while True:
                packet, sender = messages.recvfrom(65_536)
                found = packet if is_v6 else packet[20:]
                if sender[0] == address and found[0] == (129 if is_v6 else 0) and found[4:] == body:
                    return True

        repeated(attempt)


def download(address):
    with socket.create_connection((address, 80), timeout=60) as connection:
        received = 0
        while piece := connection.recv(65_536):
            received += len(piece)
    if received != len(CONTENT):
        sys.exit(f"{received} bytes of {len(CONTENT)}")


def too_big():
    """A packet that may not be fragmented is refused, and the system learns the MTU of the tunnel."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        datagrams.connect((TARGETS[0], 53))
        for _ in range(100):
            try:
                datagrams.send(LARGE)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                mtu = datagrams.getsockopt(socket.IPPROTO_IP, IP_MTU)
                if not 1_280 <= mtu < 20 + 8 + len(LARGE):
                    sys.exit(f"the MTU is {mtu}")
                return mtu
            time.sleep(0.1)
    sys.exit("a packet that is too big is not refused")


def client():
    for address in TARGETS:
        ping(address)
        for size in (1, 512, 1_200):
            payload = bytes([size % 256]) * size
            exchange(address, payload, payload)
        download(address)
    mtu = too_big()
    # The other way round the target learns it.
    exchange(TARGETS[0], b"", LARGE)
    print(f"ping, datagrams and 3 MB over IPv4 and IPv6; larger packets than {mtu} bytes are refused, both ways")


target() if sys.argv[1] == "target" else client()
