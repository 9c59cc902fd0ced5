#!/usr/bin/env python3
"""QPACK against ls-qpack, an independent implementation (`pip install pylsqpack`).

    qpack_vectors.py write   # its encoder: writes crates/qpack/tests/vectors/*.txt, which a test decodes
    qpack_vectors.py check   # its decoder: decodes what `cargo run --release -p tiderace-qpack --example encode` makes

A file of vectors has a line for each event: `capacity BYTES`, `E HEX` for a piece of the encoder stream, `B STREAM HEX` for a field
section, and behind it `F NAME VALUE` for each of its fields, an empty string as `-`.
"""

import pathlib
import random
import subprocess
import sys

import pylsqpack

ROOT = pathlib.Path(__file__).resolve().parent.parent
VECTORS = ROOT / "crates/qpack/tests/vectors"


def hexed(data):
    return data.hex() or "-"


def integer(data, at, prefix):
    """A prefixed integer (RFC 7541 section 5.1), and where it ends."""
    most = (1 << prefix) - 1
    value = data[at] & most
    at += 1
    if value == most:
        shift = 0
        while True:
            byte = data[at]
            at += 1
            value += (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
    return value, at


def inserts(data):
    """Entries that whole instructions of an encoder insert (RFC 9204 section 4.3)."""
    count = at = 0

    def string(at, prefix):
        length, at = integer(data, at, prefix)
        return at + length

    while at < len(data):
        first = data[at]
        if first >= 0x80:
            at = string(integer(data, at, 6)[1], 7)
            count += 1
        elif first >= 0x40:
            at = string(string(at, 5), 7)
            count += 1
        elif first >= 0x20:
            at = integer(data, at, 5)[1]
        else:
            at = integer(data, at, 5)[1]
            count += 1
    return count


def increment(count):
    """An Insert Count Increment (RFC 9204 section 4.4.3)."""
    if count < 0x3F:
        return bytes([count]) if count else b""
    rest, out = count - 0x3F, [0x3F]
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out + [rest])


def request(draw, number):
    kind = draw.choice(["script", "image", "style"])
    return [
        (b":method", b"GET"),
        (b":authority", b"www.example.com"),
        (b":scheme", b"https"),
        (b":path", f"/assets/{kind}/{draw.randrange(40)}?v={number // 3}".encode()),
        (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0.0.0 Safari/537.36"),
        (b"accept", b"image/avif,image/webp,*/*;q=0.8" if kind == "image" else b"*/*"),
        (b"sec-fetch-dest", kind.encode()),
        (b"referer", f"https://www.example.com/page/{number // 10}".encode()),
        (b"accept-encoding", b"gzip, deflate, br, zstd"),
        (b"cookie", b"session=" + b"0a1b2c3d" * 12),
        (b"x-request-id", f"{draw.getrandbits(64):016x}".encode()),
    ]


def response(draw, number):
    return [
        (b":status", draw.choice([b"200", b"304", b"404", b"418"])),
        (b"server", b"something/1.2"),
        (b"content-type", draw.choice([b"text/css", b"image/webp", b"font/woff2"])),
        (b"content-length", str(draw.randrange(100_000)).encode()),
        (b"cache-control", draw.choice([b"public, max-age=31536000", b"private, max-age=60"])),
        (b"strict-transport-security", b"max-age=63072000"),
        (b"set-cookie", f"id={number}".encode()),
        (b"x-empty", b""),
    ]


def noise(draw, _number):
    """Names and values of any bytes: few names, so that they come again. pylsqpack does not decode sections without fields."""
    names = [b"a", b"bb", b"x-" + b"c" * 30, b"d" * 7]
    return [
        (draw.choice(names), draw.randbytes(draw.randrange(30)) if draw.random() < 0.5 else b"same %d" % draw.randrange(6))
        for _ in range(draw.randrange(1, 12))
    ]


KINDS = {"requests": request, "responses": response, "noise": noise}
CAPACITIES = [0, 64, 200, 400, 1024, 4096, 16384]
# Of files that are kept: few, and short.
WRITTEN = [0, 200, 400, 4096]
SECTIONS = 60


def write():
    VECTORS.mkdir(parents=True, exist_ok=True)
    for kind, make in KINDS.items():
        for capacity in WRITTEN:
            draw = random.Random(f"{kind} {capacity}")
            encoder, decoder = pylsqpack.Encoder(), pylsqpack.Decoder(capacity, 0)
            stream_data = encoder.apply_settings(capacity, 0)
            lines = [f"# ls-qpack through pylsqpack {version()}, no blocked streams", f"capacity {capacity}"]
            waiting = b""
            for number in range(SECTIONS):
                fields = make(draw, number)
                instructions, block = encoder.encode(4 * number, fields)
                stream_data += instructions
                # The encoder stream comes before the section, or some sections later.
                if stream_data and draw.random() < 0.7:
                    lines.append(f"E {stream_data.hex()}")
                    decoder.feed_encoder(stream_data)
                    waiting += increment(inserts(stream_data))
                    stream_data = b""
                control, decoded = decoder.feed_header(4 * number, block)
                assert decoded == fields
                lines.append(f"B {4 * number} {block.hex()}")
                lines += [f"F {hexed(name)} {hexed(value)}" for name, value in fields]
                # A section's acknowledgment acknowledges entries too: increments that have been counted go before.
                waiting += control
                if draw.random() < 0.6:
                    encoder.feed_decoder(waiting)
                    waiting = b""
            (VECTORS / f"{kind}-{capacity}.txt").write_text("\n".join(lines) + "\n")
            dynamic = sum(line.startswith("B ") and not line.split()[2].startswith("00") for line in lines)
            print(f"{kind} {capacity}: {dynamic} of {SECTIONS} sections refer to the dynamic table")


def version():
    from importlib.metadata import version

    return version("pylsqpack")


def check():
    command = ["cargo", "run", "--quiet", "--release", "-p", "tiderace-qpack", "--example", "encode"]
    child = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(*words):
        child.stdin.write(" ".join(map(str, words)) + "\n")
        child.stdin.flush()
        return child.stdout.readline().split()

    for kind, make in KINDS.items():
        for peer in CAPACITIES:
            for ours in {200, peer, 65536}:
                draw = random.Random(f"{kind} {peer} {ours}")
                assert ask("capacity", ours, peer) == ["ok"]
                decoder = pylsqpack.Decoder(peer, 0)
                stream_data = waiting = b""
                delayed = []
                sections = dynamic = size = plain = 0
                for number in range(400):
                    fields = make(draw, number)
                    strings = [hexed(text) for field in fields for text in field]
                    instructions, block = ("" if word == "-" else word for word in ask("section", 4 * number, *strings))
                    stream_data += bytes.fromhex(instructions)
                    size += len(instructions) // 2 + len(block) // 2
                    plain += sum(len(name) + len(value) for name, value in fields)
                    dynamic += not block.startswith("00")
                    delayed.append((4 * number, bytes.fromhex(block), fields))
                    if draw.random() < 0.5:
                        # In pieces of any size; increments only for whole instructions, which is when all has come.
                        for at in range(0, len(stream_data), 5):
                            decoder.feed_encoder(stream_data[at : at + 5])
                        waiting += increment(inserts(stream_data))
                        stream_data = b""
                    draw.shuffle(delayed)
                    while delayed and draw.random() < 0.7:
                        stream, data, expected = delayed.pop()
                        if draw.random() < 0.03:
                            waiting += decoder.cancel_stream(stream)
                            continue
                        control, decoded = decoder.feed_header(stream, data)
                        assert decoded == expected, (decoded, expected)
                        waiting += control
                        sections += 1
                    if waiting and draw.random() < 0.6:
                        answer = ask("answer", waiting.hex())
                        assert answer == ["ok"], answer
                        waiting = b""
                print(
                    f"{kind}, capacity {ours} of {peer}: {sections} sections decoded, {dynamic} of 400 refer to the dynamic table; "
                    f"{size} bytes of {plain}"
                )
    child.stdin.close()
    sys.exit(child.wait())


if __name__ == "__main__":
    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    {"write": write, "check": check}[sys.argv[1]]()
