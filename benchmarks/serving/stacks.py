"""Attribute sampled Python stacks to areas of the service."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

FORWARD = "engine: embeddings and forward pass"
LOOK_UP = "look-up and encoding"
PARSE = "parse and check"
JSON = "JSON writing"
SOCKETS = "sockets and event loop"
LAYERS = "protocol and ASGI layers"
TELEMETRY = "telemetry"
ORDERING = "ordering"
HAND_OVER = "queue, batches and thread hand-over"
ADMISSION = "admission"
OTHER = "other"

AREAS = (FORWARD, LOOK_UP, PARSE, JSON, SOCKETS, LAYERS, TELEMETRY, ORDERING, HAND_OVER, ADMISSION, OTHER)

RULES = (
    ("onnxruntime/", FORWARD),
    ("service/backends/", FORWARD),
    ("ranking/frozen/", FORWARD),
    ("service/engine/request_encoder.py", LOOK_UP),
    ("service/engine/entity_encoder.py", LOOK_UP),
    ("service/engine/counter_encoder.py", LOOK_UP),
    ("service/engine/column_plan.py", LOOK_UP),
    ("service/engine/feature_trace.py", LOOK_UP),
    ("service/feature_store/", LOOK_UP),
    ("ranking/lookup/", LOOK_UP),
    ("ranking/encoding/", LOOK_UP),
    ("ranking/counters/", LOOK_UP),
    ("service/http/decode.py", PARSE),
    ("service/http/columns.py", PARSE),
    ("service/http/arrow_ipc.py", PARSE),
    ("service/engine/validation.py", PARSE),
    ("pydantic/", PARSE),
    ("service/http/encode.py", JSON),
    ("service/telemetry/", TELEMETRY),
    ("service/logs/", TELEMETRY),
    ("prometheus_client/", TELEMETRY),
    ("opentelemetry/", TELEMETRY),
    ("logging/", TELEMETRY),
    ("service/engine/response.py", ORDERING),
    ("service/engine/admission.py", ADMISSION),
    ("service/server/body_budget.py", ADMISSION),
    ("service/http/auth/", ADMISSION),
    ("service/engine/batcher.py", HAND_OVER),
    ("service/engine/scheduler.py", HAND_OVER),
    ("service/engine/scoring.py", HAND_OVER),
    ("service/engine/engine.py", HAND_OVER),
    ("service/engine/request.py", HAND_OVER),
    ("service/server/", LAYERS),
    ("service/http/", LAYERS),
    ("service/models/", LAYERS),
    ("uvicorn/protocols/", LAYERS),
    ("uvicorn/middleware/", LAYERS),
    ("starlette/", LAYERS),
    ("fastapi/", LAYERS),
    ("uvicorn/server.py", SOCKETS),
    ("asyncio/runners.py", SOCKETS),
)
"""(folder or file, area); the innermost frame of a stack that is in one of them decides, and the first rule."""

THREAD = re.compile(r"thread \((\d+)\)")
FRAME = re.compile(r"\((?P<file>[^()]*?)(?::\d+)?\)$")


def area_of(frames: Iterable[str]) -> str:
    """Return the area of a stack.

    Args:
        frames: frames such as ``run (/packages/service/engine/engine.py:12)``, the outermost first.
    """
    for frame in reversed(list(frames)):
        match = FRAME.search(frame)
        for place, area in RULES if match else ():
            if f"/{place}" in f"/{match['file']}":  # type: ignore[index]
                return area
    return OTHER


def parse_stacks(text: str) -> Iterator[tuple[int, list[str], int]]:
    """Parse the raw output of ``py-spy record --threads``; yields (thread id, frames, number of samples)."""
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        match = THREAD.match(thread)
        if match:
            yield int(match[1]), frames, int(count)


def seconds_by_area(text: str, thread_seconds: dict[int, float]) -> dict[str, float]:
    """Distribute the CPU time of each thread over the areas of its samples.

    A thread that waits for the core is sampled like one that runs, so that samples of different threads do not compare.

    Args:
        text: raw output of ``py-spy record --threads``.
        thread_seconds: CPU seconds of each thread; those of a thread without samples are ``OTHER``.
    """
    samples: dict[int, Counter[str]] = {}
    for thread, frames, count in parse_stacks(text):
        samples.setdefault(thread, Counter())[area_of(frames)] += count
    seconds = dict.fromkeys(AREAS, 0.0)
    for thread, total in thread_seconds.items():
        areas = samples.get(thread) or Counter({OTHER: 1})
        for area, count in areas.items():
            seconds[area] += total * count / areas.total()
    return seconds
