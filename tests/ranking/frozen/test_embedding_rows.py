"""Rows of embedding tables in float32, float16 and int8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipelines.cli.options import EMBEDDINGS
from ranking.frozen.embedding_rows import INT8_MAX, ROW_TYPES, EmbeddingRows, decoded, encoded

tables = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(-1000, 1000, width=32, allow_subnormal=False),
)


@given(tables)
def test_int8_rows_differ_by_at_most_half_a_step(table: np.ndarray) -> None:
    weights = encoded({"embedding.a": table, "tower.t.0.bias": table[0]}, "int8")
    rows = EmbeddingRows.of(weights, "a")
    assert rows.numbers.dtype == np.int8
    steps = np.abs(table).max(1) / INT8_MAX
    assert np.all(np.abs(rows.values - table) <= 0.5001 * steps[:, None] + 1e-30)
    np.testing.assert_array_equal(weights["tower.t.0.bias"], table[0])


@given(tables, st.sampled_from(ROW_TYPES), st.data())
def test_take_returns_the_values_of_rows(table: np.ndarray, row_type: str, data: st.DataObject) -> None:
    rows = EmbeddingRows.of(encoded({"embedding.a": table}, row_type), "a")
    ids = data.draw(hnp.arrays(np.int64, hnp.array_shapes(max_dims=2), elements=st.integers(0, len(table) - 1)))
    taken = rows.take(ids)
    assert taken.dtype == rows.values.dtype == np.float32
    np.testing.assert_array_equal(taken, rows.values[ids])


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_concat_joins_rows(row_type: str) -> None:
    random = np.random.default_rng(0)
    weights = {"embedding.a": random.normal(size=(3, 2)).astype("f4"), "embedding.b": np.zeros((2, 2), np.float32)}
    parts = [EmbeddingRows.of(encoded(weights, row_type), name) for name in ("a", "b")]
    np.testing.assert_array_equal(EmbeddingRows.concat(parts).values, np.concatenate([part.values for part in parts]))
    np.testing.assert_array_equal(parts[1].values, weights["embedding.b"])


def test_decoded_returns_float32_weights_and_shares_those_that_are() -> None:
    weights = {"embedding.a": np.ones((2, 3), np.float32), "norm.scale": np.ones(3)}
    assert all(np.shares_memory(decoded(weights)[name], weight) for name, weight in weights.items())
    restored = decoded(encoded(weights, "int8"))
    assert restored.keys() == weights.keys()
    np.testing.assert_allclose(restored["embedding.a"], weights["embedding.a"], rtol=1e-6)
    assert restored["norm.scale"].dtype == np.float64


def test_command_line_offers_all_types() -> None:
    assert EMBEDDINGS == ROW_TYPES
