"""Limits of a request's body that apply while it is received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive

from service.protocol.problems import Problem, bodies_full, body_too_large, encoded_body
from service.server.body_budget import BodyLease


def limit_body(
    receive: Receive, headers: Mapping[bytes, bytes], lease: BodyLease, max_bytes: int, seconds: float
) -> Receive:
    """Return a ``receive`` function that limits the encoding, size, memory and duration of a request's body.

    It raises ``Problem``: 408, 413, 415 or 429.

    Args:
        receive: function to wrap.
        headers: headers of the request.
        lease: the body in the budget of the process.
        max_bytes: maximum size of the body.
        seconds: maximum seconds until the body is complete.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    received, complete = 0, False

    async def receive_limited() -> Message:
        nonlocal deadline, received, complete
        if complete:
            return await receive()
        if not received:
            _check_headers(headers, max_bytes)
        try:
            if lease.is_complete:  # needs no timeout, which costs as much as parsing a small request
                message = await receive()
            else:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
        except TimeoutError:
            reason = f"the body took more than {seconds:g} s: send it faster, or fewer candidates"
            raise Problem(408, reason, headers={"Connection": "close"}) from None
        more = message.get("more_body", False)
        if more:
            pause = lease.next_pause(len(message["body"]), asyncio.get_running_loop().time())
            if pause:
                deadline += pause  # the client did not cause it
                await asyncio.sleep(pause)
        if lease.rejected:
            raise bodies_full()
        complete = not more
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise body_too_large(max_bytes)
        return message

    return receive_limited


def _check_headers(headers: Mapping[bytes, bytes], max_bytes: int) -> None:
    """Reject a body by its headers, before it is read."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_bytes:
        raise body_too_large(max_bytes)
    encoding = headers.get(b"content-encoding", b"")
    if encoding and encoding.strip().lower() != b"identity":
        raise encoded_body(encoding.decode("latin-1"))
