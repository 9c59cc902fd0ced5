"""A path between clients and the edge: TCP and UDP pass at one port, until UDP is cut."""

import asyncio


class Wall:
    """Forwards `port` to the edge at `edge`. `cut()` makes it swallow every datagram from then on, both ways."""

    def __init__(self, edge):
        self.edge = edge
        self.is_cut = False
        self.port = None
        self.backs = {}
        self.datagrams = 0

    async def start(self):
        loop = asyncio.get_running_loop()
        self.server = await asyncio.start_server(self.tcp, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.front, _ = await loop.create_datagram_endpoint(lambda: Front(self), ("127.0.0.1", self.port))
        return self

    def cut(self):
        self.is_cut = True

    async def tcp(self, reader, writer):
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.edge)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()


class Front(asyncio.DatagramProtocol):
    def __init__(self, wall):
        self.wall = wall

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, client):
        wall = self.wall
        if wall.is_cut:
            return
        wall.datagrams += 1
        if client not in wall.backs:
            wall.backs[client] = asyncio.create_task(self.open(client))
        wall.backs[client].add_done_callback(lambda back: back.result().sendto(data))

    async def open(self, client):
        loop = asyncio.get_running_loop()
        back, _ = await loop.create_datagram_endpoint(
            lambda: Back(self, client), remote_addr=("127.0.0.1", self.wall.edge)
        )
        return back


class Back(asyncio.DatagramProtocol):
    def __init__(self, front, client):
        self.front, self.client = front, client

    def datagram_received(self, data, _):
        if not self.front.wall.is_cut:
            self.front.transport.sendto(data, self.client)

    def error_received(self, _):
        pass
