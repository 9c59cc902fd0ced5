"""Loads the objects of a page with aioquic's HTTP/3 client, over one connection."""

import asyncio
import ssl

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None
        self.answers = {}

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if self.http is None:
            return
        for told in self.http.handle_event(event):
            if not isinstance(told, (HeadersReceived, DataReceived)):
                continue
            answer = self.answers[told.stream_id]
            if isinstance(told, HeadersReceived):
                answer["status"] = dict(told.headers).get(b":status")
            else:
                answer["length"] += len(told.data)
            if told.stream_ended:
                answer["ended"].set()

    async def get(self, authority, path):
        stream = self._quic.get_next_available_stream_id()
        answer = self.answers[stream] = {"status": None, "length": 0, "ended": asyncio.Event()}
        fields = {b":method": b"GET", b":scheme": b"https", b":authority": authority.encode(), b":path": path.encode()}
        self.http.send_headers(stream, list(fields.items()), end_stream=True)
        self.transmit()
        await asyncio.wait_for(answer["ended"].wait(), 30)
        return answer


async def load(root, port, count, size):
    """How many of `count` objects came with status 200 and `size` bytes."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    configuration.load_verify_locations(root)
    configuration.verify_mode = ssl.CERT_REQUIRED
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
        answers = await asyncio.gather(*(client.get(f"localhost:{port}", f"/object/{n}") for n in range(count)))
    return sum(answer["status"] == b"200" and answer["length"] == size for answer in answers)
