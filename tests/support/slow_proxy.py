"""A TCP proxy that can hold answers back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SlowProxy:
    """Passes everything on; what comes back only after ``delay`` seconds, which can be changed while it runs.

    Args:
        port: of the server behind it, on this machine.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.port = 0
        self._behind = port
        self._listens = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve()], daemon=True)

    @contextmanager
    def running(self) -> Iterator[SlowProxy]:
        self._thread.start()
        assert self._listens.wait(30)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pass(reader, behind_writer, slow=False), self._pass(behind_reader, writer, slow=True)
        )

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool) -> None:
        try:
            while data := await reader.read(65536):
                if slow:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
