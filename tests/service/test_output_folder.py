"""Time between two scans of a folder."""

from __future__ import annotations

import pytest

from service.output_folder import MAX_SCAN_PAUSE, scan_pause


@pytest.mark.parametrize(
    ("cpu", "wall", "pause"),
    [
        (0.001, 0.002, 10.0),
        (0.2, 0.3, 20.0),  # very many files
        (0.001, 1.5, 10.0),  # the machine stalled
        (0.001, 30.0, 30.0),  # the filesystem responds slowly
        (5.0, 5.0, MAX_SCAN_PAUSE),
        (0.001, 600.0, MAX_SCAN_PAUSE),
    ],
)
def test_scan_pause_is_bounded_and_not_extended_by_a_stall(cpu: float, wall: float, pause: float) -> None:
    assert scan_pause(10.0, 0.01, cpu, wall) == pytest.approx(pause)
