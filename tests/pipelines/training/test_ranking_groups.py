"""Groups of the ranking loss, and their order in an epoch."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import groupby

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.ranking_groups import permute_groups, ranking_groups
from ranking.schema import Columns

COLUMNS = Columns(time="time", user="user", item="item", request="request")


def log(*rows: tuple[str, str | None, str | None]) -> pa.Table:
    """Return a log of (time, user, request)."""
    times, users, requests = zip(*rows, strict=True)
    time = pa.array([datetime.fromisoformat(text) for text in times], pa.timestamp("us", "Asia/Tokyo"))
    return pa.table({"time": time, "user": pa.array(users), "request": pa.array(requests)})


def same(groups: np.ndarray) -> list[int]:
    """Number the groups by first appearance, -1 for rows without one."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(group, len(numbers)) if group else -1 for group in groups.tolist()]


def test_groups_are_users_and_calendar_days_in_the_zone_of_the_log() -> None:
    table = log(
        ("2026-01-01T14:00+00:00", "a", "r"),
        ("2026-01-01T14:59+00:00", "a", "r"),
        ("2026-01-01T15:00+00:00", "a", "r"),
        ("2026-01-01T15:00+00:00", "b", "r"),
        ("2026-01-01T15:00+00:00", None, "r"),
        ("2026-01-02T14:00+00:00", "a", None),
    )
    assert same(ranking_groups(table, COLUMNS, "user_day")) == [0, 0, 1, 2, -1, 1]


def test_groups_are_the_requests_of_a_user() -> None:
    time = "2026-01-01T14:00+00:00"
    table = log((time, "a", "r"), (time, "a", "s"), (time, "b", "r"), (time, "a", "r"), (time, "a", None))
    assert same(ranking_groups(table, COLUMNS, "request")) == [0, 1, 2, 0, -1]


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 5))
def test_order_contains_every_row_once_and_keeps_groups_together(groups: list[int], seed: int) -> None:
    order = permute_groups(np.array(groups, np.int64), np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(groups)))
    runs = [group for group, _ in groupby(groups[row] for row in order) if group]
    assert max(Counter(runs).values(), default=0) <= 1


def test_order_of_groups_and_of_rows_within_them_is_uniform() -> None:
    groups = np.array([1, 2, 2, 2, 0, 0])
    firsts, within = Counter[int](), Counter[int]()
    for seed in range(3000):
        order = permute_groups(groups, np.random.default_rng(seed))
        firsts[int(groups[order[0]])] += 1
        within[int(next(row for row in order if groups[row] == 2))] += 1
    for group, share in {0: 0.5, 1: 0.25, 2: 0.25}.items():
        assert abs(firsts[group] / 3000 - share) < 0.05
    assert all(abs(within[row] / 3000 - 1 / 3) < 0.05 for row in (1, 2, 3))
