"""Masks and sample weights in a log: which rows are bad, what is missing, what reaches training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.profile import profile_log
from ranking.encoding.encoder import encode_labels, encode_weights
from ranking.errors import LogError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


@pytest.fixture
def masked(shop: Shop) -> Shop:
    """A shop whose click counts where ``asked`` is 1, and whose rows weigh ``weight``."""
    click, watch = shop.schema.tasks
    columns = shop.schema.columns.model_copy(update={"weight": "weight"})
    tasks = (click.model_copy(update={"mask": "asked"}), watch)
    shop.schema = shop.schema.model_copy(update={"columns": columns, "tasks": tasks})
    return shop


def with_columns(table: pa.Table, asked: Any = None, weight: Any = None) -> pa.Table:
    rows = table.num_rows
    table = table.append_column("asked", pa.array([1] * rows) if asked is None else asked)
    return table.append_column("weight", pa.array([1.0] * rows) if weight is None else weight)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("weight", -0.5, "weight 'weight' is negative, NaN or infinite"),
        ("weight", float("nan"), "weight 'weight' is negative, NaN or infinite"),
        ("weight", float("inf"), "weight 'weight' is negative, NaN or infinite"),
        ("asked", 2, "mask 'asked' is neither 0 nor 1"),
    ],
)
def test_bad_ones_are_quarantined(masked: Shop, column: str, value: Any, reason: str) -> None:
    masked.write(masked.replaced(with_columns(masked.table(4)), column, 2, value))
    (cleaned,) = masked.reader().scan()
    assert cleaned.bad.select(["file_row", "reason"]).to_pylist() == [{"file_row": 2, "reason": reason}]
    assert cleaned.rows.num_rows == 3


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float32()])
def test_a_label_counts_where_its_mask_is_true(masked: Shop, kind: pa.DataType) -> None:
    asked = pa.array([1, 0, None, 1]).cast(kind)
    masked.write(with_columns(masked.table(4), asked=asked))
    (cleaned,) = masked.reader().scan()
    labels = encode_labels(cleaned.rows, masked.schema.tasks)
    unmasked = encode_labels(cleaned.rows, [t.model_copy(update={"mask": None}) for t in masked.schema.tasks])
    assert np.isnan(labels[:, 0]).tolist() == [False, True, True, False]
    assert np.array_equal(labels[[0, 3]], unmasked[[0, 3]])
    assert np.array_equal(labels[:, 1], unmasked[:, 1], equal_nan=True)


def test_a_mask_without_any_value_masks_everything(masked: Shop) -> None:
    masked.write(with_columns(masked.table(4), asked=pa.nulls(4)))
    (cleaned,) = masked.reader().scan()
    assert np.isnan(encode_labels(cleaned.rows, masked.schema.tasks)[:, 0]).all()


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (pa.array([0.0, 2.5, None, 1.0]), [0.0, 2.5, 1.0, 1.0]),
        (pa.array([0, 3, None, 1]), [0.0, 3.0, 1.0, 1.0]),
        (pa.nulls(4), [1.0] * 4),
    ],
)
def test_a_row_without_a_weight_counts_once(masked: Shop, weight: pa.Array, expected: list[float]) -> None:
    masked.write(with_columns(masked.table(4), weight=weight))
    (cleaned,) = masked.reader().scan()
    found = encode_weights(cleaned.rows, masked.schema.columns)
    assert found.dtype == np.float32
    assert found.tolist() == expected


def test_without_a_column_every_row_counts_once(shop: Shop) -> None:
    assert encode_weights(shop.table(3), shop.schema.columns).tolist() == [1.0] * 3


def test_masked_labels_are_no_part_of_the_base_rate(masked: Shop) -> None:
    table = masked.table(100)
    clicks = table["is_click"].to_pylist()
    masked.write(with_columns(table, asked=pa.array(clicks)))
    found = profile_log(masked.reader(), masked.logs(), masked.schema)
    assert found.labels["train"]["click"].rows == sum(clicks[:80])
    assert found.labels["train"]["click"].mean == 1.0


@pytest.mark.parametrize(("column", "what"), [("asked", "mask of task 'click'"), ("weight", "the sample weight")])
def test_a_log_without_them_is_refused_unless_it_is_only_scored(masked: Shop, column: str, what: str) -> None:
    masked.write(with_columns(masked.table(4)).drop_columns([column]))
    with pytest.raises(LogError, match=f"column '{column}' \\({what}\\) is missing"):
        list(masked.reader().scan())
    (cleaned,) = masked.reader(labels=False).scan()
    assert cleaned.rows.num_rows == 4


@pytest.mark.parametrize(("column", "what"), [("asked", "the mask of 'click'"), ("weight", "the sample weight")])
def test_text_is_refused(masked: Shop, column: str, what: str) -> None:
    masked.write(with_columns(masked.table(2), **{column: pa.array(["1", "1"])}))
    with pytest.raises(LogError, match=f"'{column}': holds string, but is {what}: write numbers"):
        list(masked.reader().scan())
