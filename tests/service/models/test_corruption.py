"""Every single byte of a bundle counts: whichever is altered, the version is refused and the old one serves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ranking.artifacts.atomic_files import files_in
from service.engine.engine import Engine
from service.engine.validation import ParsedRequest
from service.protocol.messages import RankRequest
from service.telemetry.stage_timer import StageTimer
from tests.service.models.conftest import Service

POSITIONS = 260
SEPARATORS = (b"\r", b"\x0b", b"\x1c", b"\x85", b"\0", b" ")
"""What some readers take for the end of a line too."""


def positions(file: Path, count: int, draw: random.Random) -> set[int]:
    """The first and the last byte of a file, and some between."""
    size = file.stat().st_size
    return {0, size - 1, *(draw.randrange(size) for _ in range(count))} if size else set()


def test_a_bundle_with_any_byte_altered_is_refused_and_the_old_version_serves(
    repo: Path, serve: Callable[[Path], Service]
) -> None:
    draw = random.Random(0)
    service = serve(repo)
    expected = scores(service)
    files = files_in(repo / "feed" / "2")
    assert all(file.stat().st_size for file in files)
    places = [(file, at) for file in files for at in sorted(positions(file, POSITIONS // len(files), draw))]
    assert len(places) >= 200
    service.reconciler.poll()
    for number, (file, at) in enumerate(places):
        content = file.read_bytes()
        file.write_bytes(content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :])
        service.release(version=2)
        reason = service.reconciler.rejected["feed", 2].reason
        assert file.name in reason or "SHA256SUMS" in reason, (file, at, reason)
        assert service.roles == {"current": "1"}
        if number % 20 == 0:
            np.testing.assert_array_equal(scores(service), expected)
        file.write_bytes(content)
        service.release(version=1)
    service.release(version=2)
    assert service.roles == {"current": "2"}


def test_line_ends_of_the_checksums_are_bytes_too(repo: Path, serve: Callable[[Path], Service]) -> None:
    service = serve(repo)
    sums = repo / "feed" / "2" / "SHA256SUMS"
    content = sums.read_bytes()
    ends = [at for at, byte in enumerate(content) if byte == ord("\n")]
    for at in (ends[0], ends[-1]):
        for other in SEPARATORS:
            sums.write_bytes(content[:at] + other + content[at + 1 :])
            service.release(version=2)
            assert service.roles == {"current": "1"}, (at, other)
            service.release(version=1)


def scores(service: Service) -> np.ndarray:
    """Of some candidates, by whatever version is current."""
    engine = Engine(500, service.metrics)
    request = {"user": {"id": "u3"}, "items": [{"id": f"v{i}"} for i in range(9)]}
    asked = ParsedRequest.from_message(RankRequest.model_validate(request), {})
    try:
        return asyncio.run(engine.rank(service.models.get("feed").current, asked, StageTimer())).scores
    finally:
        engine.close()
