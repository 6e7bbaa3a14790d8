"""Clients that go away before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect

from service.engine.admission import Permit


@contextmanager
def cancel_on_disconnect(ticket: Permit) -> Iterator[None]:
    """Cancels what runs inside once the client is gone.

    Raises:
        ClientDisconnect: it is gone.
    """
    if ticket.cancelled:
        raise ClientDisconnect
    task = ticket.task = asyncio.current_task()
    assert task is not None
    try:
        yield
    except asyncio.CancelledError:
        if not ticket.cancelled or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        ticket.task = None
