"""Responses that the protocol writes without the application."""

from __future__ import annotations

import pytest

from service.protocol.problems import queue_full
from service.server.context import ProblemResponses


@pytest.mark.parametrize(
    ("target", "start"),
    [
        (b"/v1/rank", b'{"type":"about:blank"'),
        (b"/v1/models/feed/rank?x=1", b'{"type":"about:blank"'),
        (b"/v2/models/feed/infer", b'{"error":"too many candidates are waiting'),
        (b"/v2/repository/index", b'{"type":"about:blank"'),
        (b"/v2/models/\xff/infer", b'{"error":'),
    ],
)
def test_problem_responses_have_the_form_of_the_target(target: bytes, start: bytes) -> None:
    head, _, body = ProblemResponses(queue_full()).to(target).to_bytes([], [], close=False).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 1" in head.lower()
    assert body.startswith(start)
