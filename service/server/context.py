"""What the connections of a process share with its application."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.engine.admission import Admission
from service.http.middleware import SECURITY_HEADERS
from service.protocol.lifecycle import Lifecycle
from service.protocol.problems import Problem, queue_full, response
from service.server.start_pacer import StartPacer
from service.settings import Settings
from service.telemetry.metrics import Metrics

Header = tuple[bytes, bytes]
ECHOED = (b"x-request-id", b"traceparent")
SAFE = re.compile(rb"[\x21-\x7e]{1,256}")


class StaticResponse:
    """An answer that is written without an application: made once, written often.

    Args:
        problem: the answer.
    """

    def __init__(self, problem: Problem) -> None:
        made = response(problem)
        self._head, self._body = (
            STATUS_LINE[problem.status] + _lines([*made.raw_headers, *SECURITY_HEADERS]),
            bytes(made.body),
        )

    def text(self, default: Iterable[Header], asked: Iterable[Header], *, last: bool) -> bytes:
        """The whole answer.

        Args:
            default: headers of every answer.
            asked: headers of the request, of which some are echoed.
            last: whether the connection ends with it.
        """
        echoed = [(name, value) for name, value in asked if name in ECHOED and SAFE.fullmatch(value)]
        closing = b"connection: close\r\n" if last else b""
        return self._head + _lines(default) + _lines(echoed) + closing + b"\r\n" + self._body


@dataclass(frozen=True)
class ServerContext:
    """In the state of the application's lifespan, under ``entrance``.

    Attributes:
        settings: limits of connections.
        admission: of requests that rank.
        lifecycle: whether clients had better look for another process.
        metrics: that count who is refused.
    """

    settings: Settings
    admission: Admission
    lifecycle: Lifecycle
    metrics: Metrics

    def refusal(self, default: Iterable[Header], asked: Iterable[Header], *, last: bool) -> bytes:
        """Count a rejected request and return its response; for the arguments see ``StaticResponse.text``."""
        for count in self._refused:
            count.inc()
        return self._full.text(default, asked, last=last)

    @cached_property
    def start_pacer(self) -> StartPacer:
        """Through which those go who are admitted."""
        return StartPacer(self.settings.max_batch_rows)

    @cached_property
    def _full(self) -> StaticResponse:
        return StaticResponse(queue_full())

    @cached_property
    def _refused(self) -> list[Counter]:
        return [self.metrics.requests.labels("429", ""), self.metrics.rejections.labels("queue_full")]


def _lines(headers: Iterable[Header]) -> bytes:
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])
