"""CounterFeatures: values of counters and histories from a state."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from ranking.counters.features import CounterFeatures
from ranking.counters.history_state import write_history_state
from ranking.counters.state import StateClock, row_type, write_counter_state
from ranking.encoding.vocabulary import mix_hashes, stable_hash
from ranking.schema import Counter, Schema

SECOND = 1_000_000
DAY = 86_400 * SECOND

SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "counters": [
            {"of": ["user_id", "tab"], "labels": ["click", "watch"], "prior": 10.0},
            {"of": ["tag"], "labels": ["click"], "half_life": "1d"},
            {"of": ["item_id"], "labels": ["click"], "window": "2d"},
        ],
        "histories": [{"of": "item_id", "label": "click", "max_length": 3}],
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "tab", "kind": "categorical", "owner": "context"},
            {"name": "tag", "kind": "bag", "owner": "item"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}, {"name": "watch", "kind": "regression"}],
    }
)
USER_TAB, TAG, ITEM = SCHEMA.counters


def rows_of(counter: Counter, records: list[tuple[Any, ...]]) -> npt.NDArray[Any]:
    """Return records of a state: key, root, bucket, last, count, label counts, label sums."""
    return np.array(records, row_type(counter))


def key(counter: Counter, **ids: int | str) -> int:
    """Return the key of one id per part."""
    return int(mix_hashes([np.array([stable_hash(ids[name])]) for name in counter.of])[0])


@pytest.fixture
def counter_features(tmp_path: Path) -> CounterFeatures:
    now = 100 * DAY
    rows = rows_of(USER_TAB, [(key(USER_TAB, user_id=1, tab=0), 1, 0, now - 60 * SECOND, 4, [4, 2], [3, 10])])
    base = rows_of(USER_TAB, [(0, 0, 0, now - 60 * SECOND, 100, [100, 50], [20, 100])])
    write_counter_state(tmp_path, USER_TAB, rows, base)
    tags = [
        (key(TAG, tag="a"), 0, 0, now - DAY, 2, [2], [1]),
        (key(TAG, tag="b"), 0, 0, now - 2 * DAY, 4, [4], [4]),
    ]
    write_counter_state(tmp_path, TAG, rows_of(TAG, tags), rows_of(TAG, [(0, 0, 0, now, 10, [10], [5])]))
    items = [(key(ITEM, item_id=7), 0, bucket, bucket * DAY + 5, 1, [1], [1]) for bucket in (98, 99, 100)]
    totals = [(0, 0, bucket, bucket * DAY + 5, 2, [2], [1]) for bucket in (98, 99, 100)]
    write_counter_state(tmp_path, ITEM, rows_of(ITEM, items), rows_of(ITEM, totals))
    users = np.array([stable_hash(1)])
    write_history_state(tmp_path, SCHEMA.histories[0], users, pa.array([[5, 7]], pa.large_list(pa.int64())))
    StateClock(now, None).write(tmp_path)
    return CounterFeatures.open(tmp_path, SCHEMA)


def completed(counter_features: CounterFeatures, seconds: float = 0.0) -> dict[str, list[object]]:
    """Complete a row of a known user and item, and one of unknown ones."""
    time = pa.array([100 * DAY + int(seconds * SECOND)] * 2, pa.timestamp("us"))
    columns = {
        "time": time,
        "user_id": pa.array([1, 2]),
        "item_id": pa.array([7, 8]),
        "tab": pa.array([0, None], pa.int64()),
        "tag": pa.array([["a", "b", "a"], None], pa.large_list(pa.string())),
    }
    table: dict[str, list[object]] = counter_features.complete(pa.table(columns)).to_pydict()
    return table


def test_rates_are_smoothed_towards_the_base_rate(counter_features: CounterFeatures) -> None:
    table = completed(counter_features)
    assert table["user_id_tab_click_rate"] == pytest.approx([(3 + 10 * 0.2) / 14, 0.2])
    assert table["user_id_tab_watch_rate"] == pytest.approx([(10 + 10 * 2) / 12, 2.0])
    assert table["user_id_tab_count"] == [4, 0]
    assert table["user_id_tab_age"] == [60, None]


def test_elements_of_a_list_are_pooled_and_decay(counter_features: CounterFeatures) -> None:
    table = completed(counter_features)
    assert table["tag_count"] == pytest.approx([2 / 2 + 4 / 4, 0])
    assert table["tag_click_rate"] == pytest.approx([(0.5 + 1 + 20 * 0.5) / (1 + 1 + 20), 0.5])
    assert table["tag_age"] == [86_400, None]


def test_window_covers_the_current_and_earlier_buckets(counter_features: CounterFeatures) -> None:
    assert completed(counter_features)["item_id_count"] == [2, 0]
    assert completed(counter_features, 86_400)["item_id_count"] == [1, 0]
    assert completed(counter_features, 2 * 86_400)["item_id_count"] == [0, 0]


def test_rate_is_null_while_no_impression_is_known(counter_features: CounterFeatures) -> None:
    assert completed(counter_features, 9 * 86_400)["item_id_click_rate"] == [None, None]


def test_history_lists_the_items_of_a_known_user(counter_features: CounterFeatures) -> None:
    assert completed(counter_features)["click_item_id_history"] == [[5, 7], None]


def test_item_lists_known_and_unknown_user_equal_the_arrow_lists(counter_features: CounterFeatures) -> None:
    users = np.array([stable_hash(1), stable_hash(2)])
    assert counter_features.item_lists(users) == {"click_item_id_history": [[5, 7], None]}
    assert counter_features.lists(users)["click_item_id_history"].to_pylist() == [[5, 7], None]


def test_values_of_the_table_are_kept(counter_features: CounterFeatures) -> None:
    table = pa.table({"user_id": [1], "item_id": [7], "tab": [0], "tag_count": [9.0], "tag": [["a"]]})
    assert counter_features.complete(table)["tag_count"].to_pylist() == [9.0]
