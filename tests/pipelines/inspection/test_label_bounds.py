"""Default bounds of regression labels: what they cut and what they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines.inspection.label_bounds import default_bounds, estimate_label_bounds
from ranking.errors import LogError
from ranking.schema import Task

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

ROWS = 50_000


def watch(**settings: Any) -> Task:
    return Task.model_validate({"name": "watch", "kind": "regression", **settings})


def outside(labels: npt.NDArray[np.float64], bounds: tuple[float | None, float | None]) -> npt.NDArray[np.bool_]:
    low, high = bounds
    return (labels < (-np.inf if low is None else low)) | (labels > (np.inf if high is None else high))


def draw(shape: str) -> npt.NDArray[np.float64]:
    """Return labels of a distribution."""
    random = np.random.default_rng(3)
    match shape:
        case "normal":
            return random.normal(100, 15, ROWS)
        case "exponential":
            return random.exponential(20, ROWS)
        case "log-normal":
            return random.lognormal(3, 1, ROWS)
        case "heavy log-normal":
            return random.lognormal(3, 3, ROWS)
        case "pareto":
            return 1 + random.pareto(1.5, ROWS)
        case "uniform":
            return random.random(ROWS)
        case "ratings":
            return random.integers(1, 6, ROWS).astype(np.float64)
        case _:
            return np.where(random.random(ROWS) < 0.97, 0.0, random.lognormal(3, 1, ROWS))


SHAPES = ("normal", "exponential", "log-normal", "heavy log-normal", "pareto", "uniform", "ratings", "mostly zero")


@pytest.mark.parametrize("transform", ["none", "log1p"])
@pytest.mark.parametrize("shape", SHAPES)
def test_default_bounds_keep_every_label_of_a_clean_log(shape: str, transform: str) -> None:
    labels = np.abs(draw(shape))
    bounds = default_bounds(watch(transform=transform), labels)
    assert not outside(labels, bounds).any()


@pytest.mark.parametrize("count", [1, 50, 1000])
@pytest.mark.parametrize("value", [1e300, 1e30, 1e12, -1e12])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in ("heavy log-normal", "mostly zero")])
def test_default_bounds_cut_wrong_labels_only(shape: str, value: float, count: int) -> None:
    labels = draw(shape)
    wrong = np.zeros(ROWS, np.bool_)
    wrong[:: ROWS // count] = True
    labels[wrong] = value
    assert (outside(labels, default_bounds(watch(), labels)) == wrong).all()


def test_default_bounds_do_not_replace_configured_ones() -> None:
    labels = draw("exponential")
    assert default_bounds(watch(min=0.0, max=60.0), labels) == (0.0, 60.0)
    low, high = default_bounds(watch(min=0.0), labels)
    assert low == 0.0
    assert high is not None
    assert labels.max() < high < 1e6


def test_default_bounds_of_few_or_constant_labels_are_open() -> None:
    assert default_bounds(watch(), np.arange(10.0)) == (None, None)
    assert default_bounds(watch(), np.full(1000, 7.0)) == (None, None)
    assert default_bounds(watch(), np.full(1000, np.nan)) == (None, None)


def with_seconds(shop: Shop, values: dict[int, float], rows: int = 400) -> pa.Table:
    table = shop.table(rows)
    for row, value in values.items():
        table = shop.with_value(table, "seconds", row, value)
    return table


def test_bounds_are_estimated_from_the_training_split_only(shop: Shop) -> None:
    shop.write(with_seconds(shop, {}).slice(0, 320), "part-0.parquet")
    before = estimate_label_bounds(shop.reader(), shop.logs(), shop.schema)
    later = shop.table(400)
    index = later.column_names.index("seconds")
    shop.write(later.set_column(index, "seconds", pa.array([1e6] * 400)).slice(320), "part-1.parquet")
    assert estimate_label_bounds(shop.reader(), shop.logs(), shop.schema) == before
    assert before.tasks[0] == shop.schema.tasks[0]
    assert before.tasks[1].max is not None


def test_masked_labels_do_not_count_and_are_not_bad(shop: Shop) -> None:
    click, seconds = shop.schema.tasks
    shop.schema = shop.schema.model_copy(update={"tasks": (click, seconds.model_copy(update={"mask": "valid"}))})
    table = with_seconds(shop, dict.fromkeys(range(0, 300, 3), 1e12))
    shop.write(table.append_column("valid", pa.array([row % 3 != 0 for row in range(400)])))
    schema = estimate_label_bounds(shop.reader(), shop.logs(), shop.schema)
    assert schema.tasks[1].max is not None
    assert schema.tasks[1].max < 1e9
    assert not sum(chunk.bad.num_rows for chunk in shop.reader().with_schema(schema).scan())


def test_text_label_is_reported_with_its_file(shop: Shop) -> None:
    table = shop.table(50)
    file = shop.write(table.set_column(table.column_names.index("seconds"), "seconds", pa.array(["1"] * 50)))
    with pytest.raises(LogError, match="column 'seconds': holds string, but it is the label of 'watch'") as caught:
        estimate_label_bounds(shop.reader(), shop.logs(), shop.schema)
    assert str(caught.value).startswith(f"{file}: ")
