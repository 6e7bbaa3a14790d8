"""Random sample of a stream of encoded rows."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.evaluation.baselines.row_sample import RowSample
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch


def encode_numbers(numbers: np.ndarray) -> LabeledBatch:
    """Return rows whose label is their number."""
    n = numbers.astype(np.float32)
    inputs = EncodedBatch(numbers[:, None], (), n[:, None], numbers[:, None] < 0)
    return LabeledBatch(inputs, n[:, None], numbers, n)


@pytest.fixture
def batches() -> list[LabeledBatch]:
    """Ten batches of 100 rows whose first label is the row number."""
    return [encode_numbers(np.arange(start, start + 100)) for start in range(0, 1000, 100)]


def labels(sample: RowSample) -> np.ndarray:
    return np.asarray(sample.rows().labels[:, 0])


def test_small_stream_is_kept_as_it_is(batches: list[LabeledBatch]) -> None:
    sample = RowSample(2000)
    for batch in batches:
        sample.add(batch)
    np.testing.assert_array_equal(labels(sample), np.arange(1000))


def test_sample_is_uniform_ordered_and_bounded(batches: list[LabeledBatch]) -> None:
    sample = RowSample(200)
    for batch in batches:
        sample.add(batch)
        assert sum(map(len, sample._parts)) <= 400 + len(batch)
    chosen = labels(sample)
    assert len(chosen) == len(set(chosen)) == 200
    assert (np.diff(chosen) > 0).all()
    assert np.histogram(chosen, 5, (0, 1000))[0].min() >= 20
