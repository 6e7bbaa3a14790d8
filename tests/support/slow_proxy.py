"""A TCP proxy that can delay responses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SlowProxy:
    """Forwards connections to a server on the loopback interface and delays the server's responses.

    Args:
        port: port of the server.

    Attributes:
        delay: seconds by which responses are delayed; may change while the proxy runs.
        port: port of the proxy.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.port = 0
        self._server_port = port
        self._listening = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve()], daemon=True)

    @contextmanager
    def running(self) -> Iterator[SlowProxy]:
        self._thread.start()
        assert self._listening.wait(30)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._forward(reader, server_writer, delayed=False), self._forward(server_reader, writer, delayed=True)
        )

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delayed: bool) -> None:
        try:
            while data := await reader.read(65536):
                if delayed:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
