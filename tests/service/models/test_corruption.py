"""A bundle with any altered byte is rejected, and the previous version continues to serve."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ranking.artifacts.atomic_files import files_in
from service.engine.engine import Engine
from service.telemetry.stage_timer import StageTimer
from tests.service.models.conftest import Service
from tests.support.direct_ranking import parse

POSITIONS = 50
SEPARATORS = (b"\r", b"\x0b", b"\x1c", b"\x85", b"\0", b" ")
"""Bytes that some readers also treat as the end of a line."""


def positions(file: Path, count: int, draw: random.Random) -> set[int]:
    """Return the positions of the first and last byte of a file and of some bytes between."""
    size = file.stat().st_size
    return {0, size - 1, *(draw.randrange(size) for _ in range(count))} if size else set()


def test_version_with_an_altered_byte_is_rejected(repo: Path, serve: Callable[[Path], Service]) -> None:
    draw = random.Random(0)
    service = serve(repo)
    expected = scores(service)
    files = files_in(repo / "feed" / "2")
    assert all(file.stat().st_size for file in files)
    locations = [
        (file, position) for file in files for position in sorted(positions(file, POSITIONS // len(files), draw))
    ]
    assert len(locations) >= 90
    service.reconciler.poll()
    for number, (file, position) in enumerate(locations):
        content = file.read_bytes()
        file.write_bytes(
            content[:position] + bytes([content[position] ^ (1 << draw.randrange(8))]) + content[position + 1 :]
        )
        service.release(version=2)
        reason = service.reconciler.rejected.reasons("feed")[2]
        assert file.name in reason or "SHA256SUMS" in reason, (file, position, reason)
        assert service.roles == {"current": "1"}
        if number % 20 == 0:
            np.testing.assert_array_equal(scores(service), expected)
        file.write_bytes(content)
        service.release(version=1)
    service.release(version=2)
    assert service.roles == {"current": "2"}


def test_version_with_altered_line_ends_in_checksums_is_rejected(repo: Path, serve: Callable[[Path], Service]) -> None:
    service = serve(repo)
    checksums = repo / "feed" / "2" / "SHA256SUMS"
    content = checksums.read_bytes()
    line_ends = [position for position, byte in enumerate(content) if byte == ord("\n")]
    for position in (line_ends[0], line_ends[-1]):
        for separator in SEPARATORS:
            checksums.write_bytes(content[:position] + separator + content[position + 1 :])
            service.release(version=2)
            assert service.roles == {"current": "1"}, (position, separator)
            service.release(version=1)


def scores(service: Service) -> np.ndarray:
    """Score some candidates with the current version."""
    engine = Engine(500, service.metrics)
    request = {"user": {"id": "u3"}, "items": [{"id": f"v{i}"} for i in range(9)]}
    parsed = parse(request)
    try:
        return asyncio.run(engine.rank(service.models.get("feed").current, *parsed, StageTimer())).scores
    finally:
        engine.close()
