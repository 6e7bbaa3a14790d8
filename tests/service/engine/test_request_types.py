"""The number of our own types that a request creates between the socket and its response."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from ranking import FrozenRanker
from service.engine.response import RankResult
from tests.support.feature_store_repositories import publish_ranker
from tests.support.hand_ranker import *  # noqa: F403
from tests.support.http_client import send_request
from tests.support.ports import HOST
from tests.support.server_thread import server_thread

MAX_TYPES = 16
BODY = {"user": {"id": 3}, "items": [{"id": 1}, {"id": 2}]}


class TypeRecorder:
    """Records the types of our packages whose instances are created while ``known`` is set, in all threads."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.known: list[Any] | None = None

    def start(self) -> None:
        self.known = gc.get_objects()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.known is None or event != "call" or not code.co_argcount:
            return
        first = code.co_varnames[0]
        if first == "_cls":  # a NamedTuple
            self._add(frame.f_locals[first])
        elif code.co_name == "__init__" and first == "self":
            self._add(type(frame.f_locals[first]))
            if type(frame.f_locals[first]) is RankResult:  # pydantic calls no Python function for its instances
                known = set(map(id, self.known))
                new = [type(value) for value in gc.get_objects() if id(value) not in known]
                for kind in new:
                    if issubclass(kind, BaseModel):
                        self._add(kind)

    def _add(self, kind: type) -> None:
        if kind.__module__.partition(".")[0] in {"service", "ranking"} and not issubclass(kind, Exception):
            self.names.add(f"{kind.__module__}.{kind.__qualname__}")


@pytest.fixture
def recorder() -> Iterator[TypeRecorder]:
    recorder = TypeRecorder()
    threading.setprofile(recorder)
    yield recorder
    threading.setprofile(None)  # type: ignore[arg-type]


def test_default_request_creates_few_types(
    hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table], tmp_path: Path, recorder: TypeRecorder
) -> None:
    repository = publish_ranker(hand_ranker, hand_ranker.complete(draw_rows(20, 5)), tmp_path)
    with server_thread(repository) as port:
        url = f"http://{HOST}:{port}/v1/rank"
        for _ in range(3):
            assert send_request(url, BODY).status == 200
        recorder.start()
        assert send_request(url, BODY).status == 200
        recorder.known = None
    recorder.names.discard("service.server.protocol.LimitedHttpProtocol")  # one per connection
    assert {f"service.engine.{name}" for name in ("response.RankResult", "scheduler.QueueEntry")} < recorder.names
    assert len(recorder.names) <= MAX_TYPES, "\n".join(sorted(recorder.names))
