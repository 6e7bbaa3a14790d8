"""Connection between a worker process and its supervisor: reports of the worker, and messages of the supervisor.

It needs no shared memory, which a full /dev/shm could not provide.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum
from multiprocessing.connection import Connection


class WorkerState(bytes, Enum):
    """What a worker reported, in the order in which it happens; the values are the messages."""

    STARTING = b"s"
    """The process runs; its event loop does not yet."""
    WAITING = b"w"
    """The event loop runs and waits for permission to accept connections."""
    ACCEPTING = b"a"
    """The event loop accepts connections; the models are being loaded."""
    SERVING = b"r"
    """The event loop accepts connections, and the models are loaded."""
    ENDING = b"e"
    """The event loop accepts no more connections and finishes its requests."""


LISTEN = b"l"
"""Message of the supervisor: the worker may accept connections."""
ALL_READY = b"g"
"""Message of the supervisor: all workers have loaded their models."""


class WorkerLink:
    """The worker's end of the connection. Sending and receiving never wait.

    Args:
        connection: Connection to the supervisor.
        all_ready: Whether all workers have been ready before this one was started.
    """

    def __init__(self, connection: Connection, *, all_ready: bool) -> None:
        self._connection, self._loaded, self._accepts = connection, False, False
        self._received = ALL_READY if all_ready else b""
        os.set_blocking(connection.fileno(), False)

    @property
    def may_listen(self) -> bool:
        """Whether this process may accept connections."""
        return self._has_received(LISTEN)

    @property
    def all_ready(self) -> bool:
        """Whether all workers have been ready at the same time, now or before."""
        return self._has_received(ALL_READY)

    def mark_ready(self) -> None:
        """Record that this process has loaded its models, and report it if the event loop accepts connections."""
        self._loaded = True
        if self._accepts:
            self._send(WorkerState.SERVING)

    def report_starting(self) -> None:
        """Report that the process runs."""
        self._send(WorkerState.STARTING)

    def report_waiting(self) -> None:
        """Report that the event loop runs and ask for permission to accept connections."""
        self._send(WorkerState.WAITING)

    def report_serving(self, *, ends: bool) -> None:
        """Report that the event loop runs.

        Args:
            ends: Whether the process has stopped accepting connections.
        """
        self._accepts = True
        loaded = WorkerState.SERVING if self._loaded else WorkerState.ACCEPTING
        self._send(WorkerState.ENDING if ends else loaded)

    def _has_received(self, message: bytes) -> bool:
        if message not in self._received:
            with suppress(OSError):  # nothing was sent
                self._received += os.read(self._connection.fileno(), 16)
        return message in self._received

    def _send(self, state: WorkerState) -> None:
        with suppress(OSError):  # the supervisor has not read earlier reports, or is gone
            os.write(self._connection.fileno(), state.value)
