from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines.inspection.sample import RowSample


def numbers(table: pa.Table) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = table["n"].to_numpy().astype(np.float64)
    return values[:, None]


def sample(rows: int, size: int, chunk: int) -> npt.NDArray[np.float64]:
    """Return the sampled row numbers of a table that is added in chunks."""
    result = RowSample(size, numbers)
    table = pa.table({"n": range(rows)})
    for start in range(0, rows, chunk):
        result.add(table.slice(start, chunk))
    values = result.rows()
    assert values is not None
    return values[:, 0]


def test_sample_of_few_rows_is_all_rows() -> None:
    assert sample(50, 100, 7).tolist() == list(range(50))


@pytest.mark.parametrize("chunk", [1, 64, 5000])
def test_sample_does_not_depend_on_the_division_into_tables(chunk: int) -> None:
    assert sample(5000, 100, chunk).tolist() == sample(5000, 100, 333).tolist()


def test_sample_is_uniform_and_bounded() -> None:
    rows = sample(200_000, 2000, 16_384)
    assert len(rows) == len(set(rows)) == 2000
    quarters = np.bincount((rows // 50_000).astype(int))
    assert (abs(quarters - 500) < 100).all()


def test_sample_encodes_few_rows_that_it_does_not_keep() -> None:
    encoded = 0

    def count(table: pa.Table) -> npt.NDArray[np.float64]:
        nonlocal encoded
        encoded += table.num_rows
        return numbers(table)

    result = RowSample(100, count)
    for start in range(0, 100_000, 100):
        result.add(pa.table({"n": range(start, start + 100)}))
    assert encoded < 2000


def test_sample_without_rows_is_none() -> None:
    assert RowSample(10, numbers).rows() is None
