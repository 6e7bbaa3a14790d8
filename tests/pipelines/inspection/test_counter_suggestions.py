"""CounterSuggester: proposes counters whose keys repeat."""

import tomllib

import pyarrow as pa
import pytest

from pipelines.inspection import counter_suggestions
from pipelines.inspection.counter_suggestions import DAY, CounterSuggester, SuggestedCounter
from ranking.encoding.feature_table import fill_features
from ranking.schema import Schema

HOUR = DAY // 24
SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "tab", "kind": "categorical", "owner": "context"},
            {"name": "session", "kind": "categorical", "owner": "context"},
            {"name": "tags", "kind": "bag", "owner": "item"},
            {"name": "position", "kind": "categorical", "owner": "context", "training_only": True},
        ],
        "tasks": [{"name": "click", "kind": "binary"}, {"name": "rare", "kind": "binary"}],
    }
)


def suggest(table: pa.Table, parts: int = 1) -> list[SuggestedCounter]:
    suggester = CounterSuggester(SCHEMA)
    completed = fill_features(table, SCHEMA, {})
    size = -(-table.num_rows // parts)
    for start in range(0, table.num_rows, size):
        suggester.add(completed.slice(start, size))
    return suggester.suggestions()


def log(rows: int = 1_000) -> pa.Table:
    """Return a log in which users and tabs repeat, items do not, and each session is new; each day has 20 rows."""
    return pa.table(
        {
            "time": pa.array([row * DAY // 20 for row in range(rows)], pa.timestamp("us")),
            "user_id": [row % 20 for row in range(rows)],
            "item_id": list(range(rows)),
            "tab": [row % 3 for row in range(rows)],
            "session": list(range(rows)),
            "tags": [["a", "b"] if row % 2 else ["c"] for row in range(rows)],
            "position": [row % 7 for row in range(rows)],
            "click": [row % 2 for row in range(rows)],
            "rare": [int(row < 10) for row in range(rows)],
        }
    )


def with_column(name: str, values: pa.Array) -> pa.Table:
    """Return ``log`` with other values of a column."""
    table = log()
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("minutes", "delay", "repeated"),
    [
        pytest.param(20 * 60, None, 0.96, id="on many days"),
        pytest.param(20, "1h", 0.92, id="for 16 hours of one day"),
        pytest.param(1, None, None, id="for 50 minutes"),
    ],
)
def test_users_who_come_on_one_day_get_a_counter_with_a_delay(
    minutes: int, delay: str | None, repeated: float | None, zone: str | None
) -> None:
    """A counter by day does not know the impressions of the same day: it would be null for these users.

    User i comes every few minutes from midnight of day i on, 50 times.
    """
    midnight = 0 if zone is None else -9 * HOUR  # in UTC
    times = [midnight + row % 20 * DAY + row // 20 * minutes * 60_000_000 for row in range(1_000)]
    found = suggest(with_column("time", pa.array(times, pa.timestamp("us", zone))))
    users = [counter for counter in found if counter.of == ("user_id",)]
    expected = SuggestedCounter(("user_id",), ("click",), 20, pytest.approx(repeated), delay)
    assert users == ([] if repeated is None else [expected])
    if delay is not None:
        assert "92% of the impressions have one more than 1h earlier" in users[0].to_toml()
        assert tomllib.loads(users[0].to_toml())["counters"][0]["delay"] == "1h"


def test_keys_that_repeat_are_suggested_single_keys_first() -> None:
    assert suggest(log()) == [
        SuggestedCounter(("user_id",), ("click",), 20, 1 - 20 / 1_000),
        SuggestedCounter(("user_id", "tags"), ("click",), 30, 1 - 30 / 1_500),
        SuggestedCounter(("user_id", "tab"), ("click",), 60, 1 - 60 / 1_000),
    ]


def test_result_does_not_depend_on_the_chunks() -> None:
    assert suggest(log(), parts=7) == suggest(log())


def test_pair_that_hardly_splits_its_user_is_not_suggested() -> None:
    table = with_column("tab", pa.array([row % 20 // 18 for row in range(1_000)]))
    assert ("user_id", "tab") not in [counter.of for counter in suggest(table)]


def test_log_without_positives_has_no_suggestions() -> None:
    assert suggest(with_column("click", pa.array([0] * 1_000))) == []


def test_rows_beyond_the_sample_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_suggestions, "SAMPLED_ROWS", 100)
    assert suggest(log(), parts=7)[0] == SuggestedCounter(("user_id",), ("click",), 20, 0.8)


def test_sample_of_two_days_counts_any_earlier_impression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a large log are of one or two days, in which no key could have many earlier days."""
    monkeypatch.setattr(counter_suggestions, "SAMPLED_ROWS", 40)
    monkeypatch.setattr(counter_suggestions, "MIN_LABELS", 5)
    users = suggest(log())[0]
    assert users == SuggestedCounter(("user_id",), ("click", "rare"), 20, 0.5, None, by_day=False)
    assert "50% of the impressions have an earlier one of the same key" in users.to_toml()


def test_suggestions_are_valid_toml() -> None:
    (first, *_), schema = suggest(log()), SCHEMA.model_dump(mode="json", exclude_none=True)
    entry = tomllib.loads(first.to_toml())
    assert entry == {"counters": [{"of": ["user_id"], "labels": ["click"]}]}
    assert "20 keys; 98% of the impressions have one of the same key on an earlier day" in first.to_toml()
    assert "user_id_click_rate" in [feature.name for feature in Schema.model_validate(schema | entry).features]
