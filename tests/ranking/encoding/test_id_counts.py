"""Tests of ``ranking.encoding.id_counts``: counts, order and merging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding import id_counts
from ranking.encoding.id_counts import IdCounts

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=20)
INTEGERS = st.lists(st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(
    st.sampled_from([(TEXTS, pa.string()), (INTEGERS, pa.int64())]).flatmap(
        lambda kind: st.tuples(st.lists(kind[0], max_size=5), st.just(kind[1]))
    ),
    st.integers(1, 4),
)
def test_counts_of_batches_are_those_of_all_ids(
    batches_and_type: tuple[Sequence[Sequence[int | str | None]], pa.DataType], min_count: int
) -> None:
    """The order is that of Python: by count, then by the code points of texts."""
    batches, dtype = batches_and_type
    counts, expected = IdCounts(dtype), Counter[int | str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_counts, "MIN_PENDING", 3)  # merges after almost every batch
        for batch in batches:
            counts.add(pa.array(batch, dtype))
            expected.update(value for value in batch if value is not None)
    kept = [value for value, count in expected.items() if count >= min_count]
    assert counts.frequent(min_count).to_pylist() == sorted(kept, key=lambda value: (-expected[value], value))
    assert counts.frequent(min_count).type == dtype
    rare = sum(count for count in expected.values() if count < min_count)
    assert counts.rare_share(min_count) == rare / max(expected.total(), 1)


def test_counting_continues_after_a_result() -> None:
    counts = IdCounts(pa.int64())
    counts.add(pa.array([1, 2]))
    assert counts.frequent(1).to_pylist() == [1, 2]
    counts.add(pa.array([2, None]))
    assert counts.frequent(1).to_pylist() == [2, 1]
