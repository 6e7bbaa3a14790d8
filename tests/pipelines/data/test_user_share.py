"""Tests of ``pipelines.data.user_share``: which users are in a share."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.user_share import in_share
from ranking.encoding.vocabulary import hash_column

IDS = pa.chunked_array([[f"u{i}" for i in range(20_000)]])


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_share_of_the_users_is_close_to_the_requested_one(share: float) -> None:
    assert in_share(IDS, share).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / len(IDS)) ** 0.5)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=50), st.floats(0.001, 1))
def test_choice_depends_on_the_id_alone(ids: list[int | None], share: float) -> None:
    chosen = in_share(pa.chunked_array([ids], pa.int64()), share)
    alone = [bool(in_share(pa.chunked_array([[value]], pa.int64()), share)[0]) for value in ids]
    assert chosen.tolist() == alone
    if share < 1:
        assert not any(mask for mask, value in zip(alone, ids, strict=True) if value is None), "no user, no share"


def test_larger_share_contains_the_smaller_one_and_1_everyone() -> None:
    shares = [in_share(IDS, share) for share in (0.1, 0.2, 0.5, 1.0)]
    assert all((larger | ~smaller).all() for smaller, larger in itertools.pairwise(shares))
    assert shares[-1].all()
    assert in_share(pa.chunked_array([[None, "a"]]), 1.0).all(), "all rows, also those without a user"


def test_choice_does_not_depend_on_the_type_of_the_ids() -> None:
    ids = pa.array(range(1000))
    columns = [ids, ids.cast(pa.float64()), ids.cast(pa.string()), ids.cast(pa.string()).dictionary_encode()]
    first, *others = (in_share(pa.chunked_array([column]), 0.3) for column in columns)
    assert all(np.array_equal(first, other) for other in others)


def test_share_is_independent_of_hash_buckets() -> None:
    """Features with ``hash_buckets`` use the hash modulo their number."""
    chosen = in_share(IDS, 0.5)
    buckets = hash_column(IDS.combine_chunks()) % 16
    shares = [chosen[buckets == bucket].mean() for bucket in range(16)]
    assert np.abs(np.array(shares) - 0.5).max() < 0.08
