from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.row_sample import Matrix, Positions, RowSample, number_sample, row_keys


def add(sample: RowSample[Matrix], start: int, stop: int) -> None:
    """Add the rows from start to stop, whose values are their positions."""
    positions = np.arange(start, stop)
    sample.add(row_keys(positions), lambda chosen: positions[chosen].astype(np.float64))


def values(sample: RowSample[Matrix]) -> npt.NDArray[np.float64]:
    sampled = sample.rows()
    assert sampled is not None
    return sampled


def sample_of(rows: int, size: int, chunk: int) -> npt.NDArray[np.float64]:
    """Return the sampled positions of rows that are added in chunks."""
    sample = number_sample(size)
    for start in range(0, rows, chunk):
        add(sample, start, min(start + chunk, rows))
    return values(sample)


def test_sample_of_few_rows_is_all_rows() -> None:
    assert sample_of(50, 100, 7).tolist() == list(range(50))


@pytest.mark.parametrize("chunk", [1, 64, 5000])
def test_sample_does_not_depend_on_the_division_into_tables(chunk: int) -> None:
    assert sample_of(5000, 100, chunk).tolist() == sample_of(5000, 100, 333).tolist()


def test_sample_is_uniform_and_bounded() -> None:
    rows = sample_of(200_000, 2000, 16_384)
    assert len(rows) == len(set(rows)) == 2000
    quarters = np.bincount((rows // 50_000).astype(int))
    assert (abs(quarters - 500) < 100).all()


def test_sample_of_positions_in_many_files_is_uniform() -> None:
    """The positions of a log are those in its files, with the number of the file in the high bits."""
    sample = number_sample(2000)
    for file in range(400):
        positions = (file << 40) + np.arange(500)
        sample.add(
            row_keys(positions), lambda chosen, file=file: np.stack([np.full(len(chosen), file), chosen], axis=1)
        )
    files, rows = values(sample).astype(int).T
    assert (abs(np.bincount(files // 100) - 500) < 100).all()
    assert (abs(np.bincount(rows // 125) - 500) < 100).all()


@given(st.lists(st.integers(0, 300), max_size=5), st.integers(1, 50), st.booleans())
def test_sample_of_parts_is_that_of_the_whole(cuts: list[int], size: int, elsewhere: bool) -> None:
    """A part of another process starts from an empty sample; one of this process knows which keys are too large."""
    bounds = [0, *sorted(cuts), 300]
    merged, empty = number_sample(size), number_sample(size)
    for start, stop in pairwise(bounds):
        part = pickle.loads(pickle.dumps(empty)).part() if elsewhere else merged.part()
        for row in range(start, stop, 40):
            add(part, row, min(row + 40, stop))
        merged.merge(part)
    assert values(merged).tolist() == sample_of(300, size, 17).tolist()


def test_sample_reads_few_rows_that_it_does_not_keep() -> None:
    sample, read = number_sample(100), 0

    def count(chosen: Positions) -> npt.NDArray[np.float64]:
        nonlocal read
        read += len(chosen)
        return chosen.astype(np.float64)

    for start in range(0, 100_000, 100):
        part = sample.part()
        part.add(row_keys(np.arange(start, start + 100)), count)
        sample.merge(part)
    assert read < 2000


def test_sample_without_rows_is_none() -> None:
    assert number_sample(10).rows() is None


def test_sample_of_batches_with_random_keys() -> None:
    numbers, random = np.arange(1000), np.random.default_rng(0)
    inputs = EncodedBatch(numbers[:, None], (), np.zeros((1000, 1), np.float32), np.zeros((1000, 1), bool))
    sample = RowSample(200, EncodedBatch.concat, EncodedBatch.take)
    for start in range(0, 1000, 100):
        sample.add(random.random(100), inputs.take(np.arange(start, start + 100)).take)
        assert sum(map(len, sample._parts)) <= 400
    sampled = sample.rows()
    assert sampled is not None
    chosen = sampled.ids[:, 0]
    assert len(chosen) == len(set(chosen)) == 200
    assert (np.diff(chosen) > 0).all()
    assert np.histogram(chosen, 5, (0, 1000))[0].min() >= 20
