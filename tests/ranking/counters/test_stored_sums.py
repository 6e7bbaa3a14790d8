"""Sections of values in a store that cannot be those of a counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.counters.state import no_impressions
from ranking.counters.stored_sums import (
    FIRST_TIME,
    LAST_TIME,
    MAX_SUM,
    StateValue,
    are_records,
    decode_records,
    encode_records,
)
from ranking.schema import Counter

COUNTERS = [
    Counter.model_validate({"of": ["user_id"], "labels": ["click", "watch"]}),
    Counter.model_validate({"of": ["item_id"], "labels": ["click"], "window": "3d"}),
]
every_counter = pytest.mark.parametrize("counter", COUNTERS, ids=["plain", "window"])


def section(counter: Counter, **changes: Any) -> bytes:
    """Return three records, of which the second one is changed."""
    records = no_impressions(counter, 3)
    records["key"], records["count"], records["label_counts"] = [5, -7, 9], [1.0, 2.0, 3.0], 1.0
    records["last"][1:] = 1_700_000_000_000_000
    records["label_sums"] = -2.5
    for name, value in changes.items():
        records[name][1] = value
    return encode_records(counter, records).tobytes()


@every_counter
def test_records_of_a_counter_are_valid(counter: Counter) -> None:
    data = section(counter)
    assert are_records(counter, [data])
    assert are_records(counter, [b""])
    assert decode_records(counter, data)["key"].tolist() == [5, -7, 9]
    for last in (FIRST_TIME, LAST_TIME):
        assert are_records(counter, [section(counter, last=last)])


@every_counter
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", np.nan),
        ("count", -1.0),
        ("count", np.inf),
        ("label_counts", -0.5),
        ("label_counts", np.nan),
        ("label_sums", -np.inf),
        ("label_sums", np.nan),
        ("label_sums", 1e308),
        ("label_sums", -2 * MAX_SUM),
        ("last", FIRST_TIME - 1),
        ("last", LAST_TIME + 1),
        ("last", 2**63 - 1),
    ],
)
def test_records_that_no_log_can_have_are_invalid(counter: Counter, field: str, value: float) -> None:
    assert not are_records(counter, [section(counter, **{field: value})])


@every_counter
@given(size=st.integers(0, 150))
def test_truncated_records_are_invalid_unless_they_are_whole(counter: Counter, size: int) -> None:
    data = section(counter)
    assert are_records(counter, [data[:size]]) == (min(size, len(data)) % (len(data) // 3) == 0)


@given(since=st.none() | st.integers(-(2**62), 2**62))
def test_state_reads_back_equal(since: int | None) -> None:
    state = StateValue(7, 2**61, 5, {3: b"abc", 2**62: b""}, since)
    assert StateValue.decode(state.encode()) == state
