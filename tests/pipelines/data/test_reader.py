from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config.config import LogsConfig
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.reader import LogReader, ScannedChunk, load_tables
from pipelines.data.splits import SPLITS, rows_in_range, split_range
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import LogError
from ranking.schema import Schema
from tests.pipelines.conftest import FIRST_DAY

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MORNING = datetime(2026, 1, 5)


def numbers(batches: Iterable[ScannedChunk]) -> list[int]:
    """Column ``n`` of the good rows."""
    return [n for batch in batches for n in batch.rows["n"].to_pylist()]


def refusal(shop: Shop) -> str:
    """What reading the whole log says."""
    with pytest.raises(LogError) as caught:
        list(shop.reader().scan())
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestStreaming:
    def test_a_file_comes_in_batches_of_bounded_size_and_in_order(self, shop: Shop) -> None:
        rows = CHUNK_ROWS * 2 + 10
        small = shop.table(10).take(pa.array(np.arange(rows) % 10)).drop_columns(["tags", "n"])
        table = small.append_column("n", pa.array(range(rows))).append_column("tags", pa.nulls(rows))
        shop.write(table)
        batches = list(shop.reader().scan())
        assert max(batch.rows.num_rows for batch in batches) <= CHUNK_ROWS
        assert numbers(batches) == list(range(rows))

    def test_files_come_in_order_of_their_names(self, shop: Shop) -> None:
        table = shop.table(30)
        shop.write(table.slice(20), "date=2026-01-03/part-0.parquet")
        shop.write(table.slice(0, 10), "date=2026-01-01/part-0.parquet")
        shop.write(table.slice(10, 10), "date=2026-01-02/part-0.parquet")
        assert numbers(shop.reader().scan()) == list(range(30))

    def test_each_batch_names_its_file(self, shop: Shop) -> None:
        table = shop.table(20)
        files = [shop.write(table.slice(10 * i, 10), f"part-{i}.parquet") for i in range(2)]
        assert [batch.file for batch in shop.reader().scan()] == [str(file) for file in files]

    def test_a_single_file_is_a_log(self, shop: Shop) -> None:
        file = shop.write(shop.table(10))
        assert numbers(LogReader(file, shop.schema, {}).scan()) == list(range(10))

    def test_a_log_can_be_read_again(self, shop: Shop) -> None:
        shop.write(shop.table(10))
        reader = shop.reader()
        assert numbers(reader.scan()) == numbers(reader.scan()) == list(range(10))

    def test_what_the_file_holds_besides_the_schema_is_kept(self, shop: Shop) -> None:
        shop.write(shop.table(5).append_column("note", pa.array(list("abcde"))))
        (batch,) = shop.reader().scan()
        assert batch.rows["note"].to_pylist() == list("abcde")

    def test_files_of_other_kinds_and_drafts_of_writers_are_no_part_of_a_log(self, shop: Shop) -> None:
        shop.write(shop.table(5), "date=2026-01-01/part-0.parquet")
        (shop.log / "_SUCCESS").touch()
        (shop.log / "_metadata").write_text("no Parquet")
        (shop.log / "date=2026-01-01" / ".part-0.parquet.crc").write_text("no Parquet")
        (shop.log / "date=2026-01-01" / "done").touch()
        (shop.log / "_temporary" / "0").mkdir(parents=True)
        (shop.log / "_temporary" / "0" / "part-1.parquet").write_text("half of a file")
        assert numbers(shop.reader().scan()) == list(range(5))

    def test_folders_that_are_a_key_are_read_though_it_starts_with_an_underscore(self, shop: Shop) -> None:
        shop.write(shop.table(5), "_day=1/part-0.parquet")
        assert numbers(shop.reader().scan()) == list(range(5))

    def test_times_may_be_in_any_order(self, shop: Shop) -> None:
        table = shop.table(60).take(pa.array(np.random.default_rng(0).permutation(60)))
        shop.write(table, row_group_size=7)
        read = [n for split in SPLITS for n in numbers(shop.reader().scan(*split_range(shop.logs(), split)))]
        assert sorted(read) == list(range(60))


KINDS = {
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms"),
    "microseconds": pa.timestamp("us"),
    "nanoseconds": pa.timestamp("ns"),
    "UTC": pa.timestamp("ms", "UTC"),
    "Shanghai": pa.timestamp("us", "Asia/Shanghai"),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
MOMENTS = st.integers(-5, 55).map(lambda hours: MORNING + timedelta(hours=hours))


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log of 48 rows, one an hour in shuffled order, for each type of time."""
    order = np.random.default_rng(0).permutation(48)
    files = {}
    for name, kind in KINDS.items():
        files[name] = tmp_path_factory.mktemp("hours") / "log.parquet"
        moments = [MORNING + timedelta(hours=int(n)) for n in order]
        if getattr(kind, "tz", None):
            moments = [moment.replace(tzinfo=UTC) for moment in moments]
        at = pa.array(moments, kind if pa.types.is_timestamp(kind) else pa.timestamp("ms")).cast(kind, safe=False)
        log = {"n": order, "time": at, "user_id": ["u"] * 48, "item_id": ["v"] * 48, "click": order % 2}
        pq.write_table(pa.table(log), files[name], row_group_size=7)
    return files


@pytest.fixture(scope="module")
def clicks() -> Schema:
    """As little as a ranker can have."""
    feature = {"name": "item_id", "kind": "categorical", "owner": "item"}
    return Schema.model_validate({"name": "s", "features": [feature], "tasks": [{"name": "click", "kind": "binary"}]})


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """A machine in another time zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


class TestSplits:
    @settings(deadline=None, max_examples=60)
    @given(kind=st.sampled_from(sorted(KINDS)), cuts=st.lists(MOMENTS, min_size=2, max_size=2, unique=True).map(sorted))
    def test_share_no_row_and_leave_none_out(
        self, hours: dict[str, Path], clicks: Schema, kind: str, cuts: list[datetime]
    ) -> None:
        logs = LogsConfig(path=hours[kind], validation_from=cuts[0], test_from=cuts[1])
        reader = LogReader(hours[kind], clicks, {})
        rows = {split: set(numbers(reader.scan(*split_range(logs, split)))) for split in SPLITS}
        assert set().union(*rows.values()) == set(range(48))
        assert sum(map(len, rows.values())) == 48

    @settings(deadline=None, max_examples=60)
    @given(
        kind=st.sampled_from([k for k in sorted(KINDS) if not k.startswith("date")]),
        cuts=st.lists(MOMENTS, min_size=2, max_size=2, unique=True).map(sorted),
    )
    def test_start_with_their_bound_and_end_before_the_next(
        self, hours: dict[str, Path], clicks: Schema, kind: str, cuts: list[datetime]
    ) -> None:
        logs = LogsConfig(path=hours[kind], validation_from=cuts[0], test_from=cuts[1])
        reader = LogReader(hours[kind], clicks, {})
        rows = {split: set(numbers(reader.scan(*split_range(logs, split)))) for split in SPLITS}
        moment = {n: MORNING + timedelta(hours=n) for n in range(48)}
        assert rows["train"] == {n for n in moment if moment[n] < cuts[0]}
        assert rows["validation"] == {n for n in moment if cuts[0] <= moment[n] < cuts[1]}
        assert rows["test"] == {n for n in moment if moment[n] >= cuts[1]}

    @pytest.mark.parametrize("kind", ["date32", "date64"])
    def test_of_dates_are_whole_days(self, hours: dict[str, Path], clicks: Schema, kind: str) -> None:
        bound = MORNING + timedelta(days=1)
        batches = LogReader(hours[kind], clicks, {}).scan(since=bound)
        assert sorted(numbers(batches)) == list(range(24, 48))

    def test_a_bound_with_a_zone_is_that_moment(self, hours: dict[str, Path], clicks: Schema) -> None:
        eight = datetime(2026, 1, 5, 18, tzinfo=timezone(timedelta(hours=8)))  # 10:00 UTC
        assert sorted(numbers(LogReader(hours["UTC"], clicks, {}).scan(until=eight))) == list(range(10))

    @pytest.mark.parametrize("machine", ["UTC", "America/New_York"], indirect=True)
    @pytest.mark.parametrize("kind", ["Shanghai", "UTC", "milliseconds"])
    def test_a_bound_without_one_is_utc_where_the_column_has_one_wherever_the_machine_is(
        self, hours: dict[str, Path], clicks: Schema, kind: str, machine: str
    ) -> None:
        ten = datetime(2026, 1, 5, 10)
        assert sorted(numbers(LogReader(hours[kind], clicks, {}).scan(until=ten))) == list(range(10))

    def test_of_training_starts_with_train_from_and_row_groups_before_it_are_not_decoded(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.write(shop.table(100), row_group_size=10)
        logs = shop.logs().model_copy(update={"train_from": FIRST_DAY + timedelta(days=5, hours=12)})
        decoded: list[int] = []
        whole = pq.ParquetFile.iter_batches

        def noted(self: pq.ParquetFile, size: int, groups: list[int], *rest: Any, **more: Any) -> Any:
            decoded.extend(groups)
            return whole(self, size, groups, *rest, **more)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
        assert numbers(shop.reader().scan(*split_range(logs, "train"))) == list(range(55, 80))
        assert decoded == [5, 6, 7]

    def test_keep_the_positions_of_rows_in_their_file(self, shop: Shop) -> None:
        shop.write(shop.replaced(shop.table(100), "item_id", 57, None), row_group_size=10)
        batches = shop.reader().scan(since=FIRST_DAY + timedelta(days=5, hours=12))
        assert [row for batch in batches for row in batch.bad["file_row"].to_pylist()] == [57]

    def test_rows_without_a_time_are_in_none(self, shop: Shop) -> None:
        shop.write(shop.replaced(shop.table(10), "time", 4, None))
        reader = shop.reader()
        rows = [n for split in SPLITS for n in numbers(reader.scan(*split_range(shop.logs(), split)))]
        assert sorted(rows) == [n for n in range(10) if n != 4]

    def test_a_table_is_split_as_the_log_is(self, shop: Shop) -> None:
        table = shop.table(50)
        shop.write(table)
        for split in SPLITS:
            bounds = split_range(shop.logs(), split)
            read = numbers(shop.reader().scan(*bounds))
            assert rows_in_range(table, "time", *bounds)["n"].to_pylist() == read
            assert read


class TestTimeColumn:
    @pytest.mark.parametrize(
        "kind", [pa.int64(), pa.float64(), pa.string(), pa.time64("us")], ids=lambda kind: str(kind).split("[")[0]
    )
    def test_must_hold_timestamps(self, shop: Shop, kind: pa.DataType) -> None:
        table = shop.table(5)
        values = pa.array(range(5)).cast(pa.int64()).cast(kind, safe=False)
        file = shop.write(table.set_column(1, "time", values))
        text = refusal(shop)
        assert text.startswith(f"{file}: column 'time'")
        assert "write timestamps" in text

    def test_must_hold_timestamps_where_a_split_is_read_too(self, shop: Shop) -> None:
        file = shop.write(shop.table(5).set_column(1, "time", pa.array(range(5))))
        with pytest.raises(LogError, match="write timestamps") as caught:
            list(shop.reader().scan(since=MORNING))
        assert str(caught.value).startswith(f"{file}: column 'time'")


class TestDuplicates:
    def test_in_a_file_are_dropped_and_counted(self, shop: Shop) -> None:
        table = shop.table(10)
        shop.write(pa.concat_tables([table, table.slice(2, 3), table.slice(2, 1)]))
        (batch,) = shop.reader().scan()
        assert batch.rows["n"].to_pylist() == list(range(10))
        assert batch.duplicates == 4

    def test_across_files_of_a_partition_are_dropped(self, shop: Shop) -> None:
        table = shop.table(10)
        shop.write(table, "date=2026-01-01/part-0.parquet")
        shop.write(table.slice(5), "date=2026-01-01/part-1.parquet")
        batches = list(shop.reader().scan())
        assert numbers(batches) == list(range(10))
        assert sum(batch.duplicates for batch in batches) == 5

    def test_across_batches_of_a_file_are_dropped(self, shop: Shop) -> None:
        table = shop.table(10)
        shop.write(pa.concat_tables([table, table, table]), row_group_size=4)
        assert numbers(shop.reader().scan()) == list(range(10))

    @pytest.mark.parametrize("split", SPLITS)
    def test_are_dropped_in_every_split(self, shop: Shop, split: str) -> None:
        table = shop.table(30)
        shop.write(pa.concat_tables([table, table]))
        bounds = split_range(shop.logs(), split)
        assert numbers(shop.reader().scan(*bounds)) == rows_in_range(table, "time", *bounds)["n"].to_pylist()

    def test_with_nulls_and_lists_are_dropped(self, shop: Shop) -> None:
        table = shop.table(4)
        for column in ("age", "price", "tags", "tab", "seconds", "user_id"):
            table = shop.replaced(table, column, 1, None)
        table = shop.replaced(table, "tags", 2, ["red", None])
        shop.write(pa.concat_tables([table, table]))
        assert numbers(shop.reader().scan()) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("time", datetime(2026, 1, 1, 0, 0, 0, 1)),
            ("user_id", "U0"),
            ("age", None),
            ("price", 1e-300),
            ("tags", ["new", "red"]),
            ("tags", []),
            ("tab", -1),
            ("is_click", None),
            ("seconds", 0.0),
        ],
    )
    def test_must_be_exact(self, shop: Shop, column: str, value: Any) -> None:
        row = shop.replaced(shop.replaced(shop.table(1), "tags", 0, ["red", "new"]), "age", 0, 30.0)
        near = shop.replaced(row, column, 0, value)
        shop.write(pa.concat_tables([row, near]))
        assert numbers(shop.reader().scan()) == [0, 0]

    def test_stay_where_a_log_is_scored(self, shop: Shop) -> None:
        table = shop.table(10)
        shop.write(pa.concat_tables([table, table]))
        assert numbers(shop.reader().scan(drop_duplicates=False)) == [*range(10), *range(10)]


class TestMissingColumns:
    @pytest.mark.parametrize(
        ("column", "found", "what"),
        [
            ("is_click", "is_clik", "label of task 'click'"),
            ("seconds", "second", "label of task 'watch'"),
            ("age", "agee", "feature 'age'"),
            ("tags", "tag", "feature 'tags'"),
            ("item_id", "itemid", "the item id"),
            ("user_id", "userid", "the user id"),
            ("time", "times", "the time"),
        ],
    )
    def test_are_named_with_the_file_and_what_was_probably_meant(
        self, shop: Shop, column: str, found: str, what: str
    ) -> None:
        table = shop.table(5)
        file = shop.write(table.rename_columns([found if c == column else c for c in table.column_names]))
        assert refusal(shop) == f"{file}: column '{column}' ({what}) is missing; did you mean '{found}'?"

    def test_without_a_similar_one_list_what_there_is(self, shop: Shop) -> None:
        shop.write(shop.table(5).drop_columns(["price"]))
        text = refusal(shop)
        assert "'price'" in text
        assert "(found: age, is_click, item_id, n, seconds, tab, tags, time, user_id)" in text

    def test_are_told_together_without_what_side_tables_give(self, shop: Shop) -> None:
        users = FeatureTable(pa.table({"user_id": ["u1"], "age": [1.0]}), "user_id")
        file = shop.write(shop.table(5).select(["n", "time", "user_id", "tags", "is_click", "seconds"]))
        with pytest.raises(LogError) as caught:
            list(shop.reader(tables={"user": users}).scan())
        assert str(caught.value) == (
            f"{file}: column 'item_id' (the item id), column 'price' (feature 'price'), column 'tab' (feature 'tab') "
            "are missing (found: is_click, n, seconds, tags, time, user_id)"
        )

    def test_that_only_some_files_have_are_told_together(self, shop: Shop) -> None:
        first = shop.write(shop.table(5), "part-0.parquet")
        later = shop.write(shop.table(5).drop_columns(["age", "tab"]), "part-1.parquet")
        assert refusal(shop) == (
            f"{later}: column 'age' (feature 'age'), column 'tab' (feature 'tab') are missing, "
            f"but {first} has them: write them in all files"
        )

    def test_of_a_later_file_name_that_file(self, shop: Shop) -> None:
        shop.write(shop.table(5), "part-0.parquet")
        later = shop.write(shop.table(5).drop_columns(["age"]), "part-1.parquet")
        assert refusal(shop).startswith(f"{later}: column 'age' (feature 'age') is missing")

    def test_may_come_from_a_side_table(self, shop: Shop) -> None:
        table = shop.table(20)
        users = pa.table({"user_id": [f"u{i}" for i in range(20)], "age": [float(i) for i in range(20)]})
        shop.write(table.drop_columns(["age"]))
        (batch,) = shop.reader(tables={"user": FeatureTable(users, "user_id")}).scan()
        assert batch.rows["age"].to_pylist() == [float(user[1:]) for user in table["user_id"].to_pylist()]

    def test_of_labels_time_and_user_matter_not_where_a_log_is_scored(self, shop: Shop) -> None:
        users = {"user": FeatureTable(pa.table({"user_id": ["u1"], "age": [1.0]}), "user_id")}
        shop.write(shop.table(5).drop_columns(["is_click", "seconds", "time"]))
        assert numbers(shop.reader(labels=False, tables=users).scan()) == list(range(5))

    def test_of_the_item_id_matter_even_there(self, shop: Shop) -> None:
        file = shop.write(shop.table(5).drop_columns(["item_id"]))
        with pytest.raises(LogError) as caught:
            list(shop.reader(labels=False).scan())
        assert str(caught.value).startswith(f"{file}: column 'item_id'")


class TestWrongTypes:
    @pytest.mark.parametrize(
        ("column", "values", "mend"),
        [
            ("age", ["young", "old"], "write numbers"),
            ("tags", ["red", "new"], "write lists of ids"),
            ("tab", [0.5, 1.5], "must be integers or strings"),
            ("user_id", [b"u1", b"u2"], "write integers or strings"),
            ("is_click", ["yes", "no"], "write numbers"),
            ("seconds", ["1", "2"], "write numbers"),
        ],
    )
    def test_are_named_with_the_file_and_the_mend(self, shop: Shop, column: str, values: list[Any], mend: str) -> None:
        table = shop.table(2)
        file = shop.write(table.set_column(table.column_names.index(column), column, pa.array(values)))
        text = refusal(shop)
        assert text.startswith(f"{file}: column '{column}': ")
        assert mend in text

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("is_click", pa.array([True, False])),
            ("is_click", pa.array([1.0, None])),
            ("is_click", pa.array([1, 0], pa.uint64())),
            ("is_click", pa.nulls(2)),
            ("age", pa.array([True, None])),
            ("age", pa.array([30, 40], pa.uint8())),
            ("age", pa.array([1.5, None], pa.float32())),
            ("age", pa.array([1.5, None], pa.float16())),
            ("tab", pa.array([1.0, None])),
            ("tab", pa.array([True, False])),
            ("tab", pa.array(["1", "2"]).dictionary_encode()),
            ("user_id", pa.array(["u", None], pa.large_string())),
            ("tags", pa.array([["a"], None], pa.large_list(pa.string()))),
            ("tags", pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2))),
            ("tags", pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))),
            ("tags", pa.nulls(2)),
        ],
        ids=lambda value: value if isinstance(value, str) else str(value.type).split(">")[0],
    )
    def test_other_widths_of_the_right_kind_are_read(self, shop: Shop, column: str, values: pa.Array) -> None:
        table = shop.table(2)
        shop.write(table.set_column(table.column_names.index(column), column, values))
        assert numbers(shop.reader().scan()) == [0, 1]


class TestFilesThatCannotBeRead:
    def test_one_that_lacks_rows_its_footer_promises(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        file = shop.write(shop.table(10))
        whole = pq.ParquetFile.iter_batches
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: (b.slice(1) for b in whole(*a, **k)))
        assert refusal(shop).startswith(f"{file}: row group 0 holds 9 rows, its footer says 10; restore the file")

    def test_a_missing_path(self, shop: Shop) -> None:
        with pytest.raises(LogError, match="no such log; name a Parquet file or a folder of them") as caught:
            LogReader(shop.log / "nothing", shop.schema, {})
        assert str(caught.value).startswith(f"{shop.log}/nothing: ")

    def test_an_empty_folder(self, shop: Shop) -> None:
        with pytest.raises(LogError, match="holds no Parquet file") as caught:
            shop.reader()
        assert str(caught.value).startswith(f"{shop.log}: ")

    @pytest.mark.parametrize("name", ["part-0.parquet", "part-1.parquet", "part-2.parquet"])
    @pytest.mark.parametrize("damage", ["text", "empty", "truncated", "no footer"])
    def test_a_damaged_file_is_named(self, shop: Shop, name: str, damage: str) -> None:
        table = shop.table(30)
        for i in range(3):
            shop.write(table.slice(10 * i, 10), f"part-{i}.parquet")
        file = shop.log / name
        content = file.read_bytes()
        file.write_bytes(
            {
                "text": b"this is no Parquet",
                "empty": b"",
                "truncated": content[: len(content) // 2],
                "no footer": content[:-8] + bytes(8),
            }[damage]
        )
        text = refusal(shop)
        assert str(file) in text
        assert "restore the file or move it away" in text

    def test_a_file_damaged_in_the_middle_is_named(self, shop: Shop) -> None:
        shop.write(shop.table(10), "part-0.parquet")
        file = shop.write(shop.table(1000), "part-1.parquet")
        content = bytearray(file.read_bytes())
        content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
        file.write_bytes(content)
        text = refusal(shop)
        assert text.startswith(f"{file}: ")
        assert "restore the file or move it away" in text

    def test_files_before_it_are_read(self, shop: Shop) -> None:
        shop.write(shop.table(10), "part-0.parquet")
        (shop.log / "part-1.parquet").write_text("this is no Parquet")
        batches = shop.reader().scan()
        assert next(batches).rows.num_rows == 10
        with pytest.raises(LogError, match=r"part-1\.parquet"):
            next(batches)

    def test_a_file_without_rows_is_no_error(self, shop: Shop) -> None:
        shop.write(shop.table(10).slice(0, 0), "part-0.parquet")
        shop.write(shop.table(10), "part-1.parquet")
        assert numbers(shop.reader().scan()) == list(range(10))


class TestPartitions:
    def test_their_keys_can_be_features(self, shop: Shop) -> None:
        table = shop.table(20).drop_columns(["tab"])
        shop.write(table.slice(0, 12), "tab=1/part-0.parquet")
        shop.write(table.slice(12), "tab=4/part-0.parquet")
        tabs = [tab for batch in shop.reader().scan() for tab in batch.rows["tab"].to_pylist()]
        assert tabs == [1] * 12 + [4] * 8

    def test_their_keys_can_be_ids(self, shop: Shop) -> None:
        shop.write(shop.table(5).drop_columns(["item_id"]), "item_id=v7/part-0.parquet")
        (batch,) = shop.reader().scan()
        assert batch.rows["item_id"].to_pylist() == ["v7"] * 5

    @pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
    def test_a_key_that_the_file_holds_too_is_read_once(self, shop: Shop, kind: pa.DataType) -> None:
        table = shop.table(5)
        tabs = pa.array([3] * 5, kind)
        shop.write(table.set_column(table.column_names.index("tab"), "tab", tabs), "tab=3/part-0.parquet")
        (batch,) = shop.reader().scan()
        assert batch.rows["tab"].to_pylist() == [3] * 5

    def test_partitions_within_partitions(self, shop: Shop) -> None:
        table = shop.table(12).drop_columns(["tab"])
        for i in range(4):
            shop.write(table.slice(3 * i, 3), f"date=2026-01-0{1 + i // 2}/tab={i % 2}/part-0.parquet")
        batches = list(shop.reader().scan())
        assert [batch.rows["tab"][0].as_py() for batch in batches] == [0, 1, 0, 1]
        assert numbers(batches) == list(range(12))


class TestFilesThatDiffer:
    def test_by_a_column_that_nobody_needs(self, shop: Shop) -> None:
        table = shop.table(20)
        shop.write(table.slice(0, 10), "part-0.parquet")
        shop.write(table.slice(10).append_column("note", pa.array(["new"] * 10)), "part-1.parquet")
        first, second = shop.reader().scan()
        assert numbers([first, second]) == list(range(20))
        assert "note" not in first.rows.column_names
        assert second.rows["note"].to_pylist() == ["new"] * 10

    def test_by_the_order_of_their_columns(self, shop: Shop) -> None:
        table = shop.table(20)
        shop.write(table.slice(0, 10), "part-0.parquet")
        shop.write(table.slice(10).select(table.column_names[::-1]), "part-1.parquet")
        assert numbers(shop.reader().scan()) == list(range(20))

    def test_by_the_width_of_a_type(self, shop: Shop) -> None:
        table = shop.table(20)
        shop.write(table.slice(0, 10), "part-0.parquet")
        narrow = table.slice(10).set_column(1, "time", table["time"].slice(10).cast(pa.timestamp("ms"), safe=False))
        narrow = narrow.set_column(5, "price", narrow["price"].cast(pa.float32()))
        shop.write(narrow, "part-1.parquet")
        batches = list(shop.reader().scan(until=datetime(2027, 1, 1)))
        assert numbers(batches) == list(range(20))
        assert {batch.rows["price"].type for batch in batches} == {pa.float64()}

    @pytest.mark.parametrize("name", ["reason", "file", "file_row"])
    def test_a_log_may_have_columns_named_as_those_of_the_quarantine(self, shop: Shop, name: str) -> None:
        table = shop.replaced(shop.table(5), "item_id", 2, None).append_column(name, pa.array(list("abcde")))
        shop.write(table)
        (batch,) = shop.reader().scan()
        assert batch.rows["n"].to_pylist() == [0, 1, 3, 4]
        assert batch.bad["reason"].to_pylist() == ["the item id is null"]
        assert batch.bad["file_row"].to_pylist() == [2]


class TestSchemaDrift:
    """One type in some files and another in the rest: an error, unless they mean the same."""

    @staticmethod
    def changed(shop: Shop, column: str, values: pa.Array) -> tuple[Path, Path]:
        """Two files; the second has these values in a column."""
        table = shop.table(20)
        later = table.slice(10).set_column(table.column_names.index(column), column, values)
        return shop.write(table.slice(0, 10), "part-0.parquet"), shop.write(later, "part-1.parquet")

    @pytest.mark.parametrize(
        ("column", "values", "before", "after"),
        [
            ("tab", pa.array(list("0123456789")), "int64", "string"),
            ("user_id", pa.array(range(10)), "string", "int64"),
            ("user_id", pa.array([1.0] * 10), "string", "double"),
            ("age", pa.array(["30"] * 10), "double", "string"),
            ("is_click", pa.array(["1"] * 10), "int8", "string"),
            ("tags", pa.array(["red"] * 10), "list<element: string>", "string"),
            ("tags", pa.array([[1]] * 10), "list<element: string>", "list<element: int64>"),
            ("tags", pa.array([[["red"]]] * 10), "list<element: string>", "list<element: list<element: string>>"),
            ("tab", pa.array([{"id": 1}] * 10), "int64", "struct<id: int64>"),
            ("time", pa.array([datetime(2026, 1, 6, tzinfo=UTC)] * 10), "timestamp[us]", "timestamp[us, tz=UTC]"),
            ("time", pa.array([date(2026, 1, 6)] * 10), "timestamp[us]", "date32[day]"),
        ],
        ids=str,
    )
    def test_is_an_error_that_names_both_files(
        self, shop: Shop, column: str, values: pa.Array, before: str, after: str
    ) -> None:
        first, second = self.changed(shop, column, values)
        assert refusal(shop) == (
            f"{second}: column '{column}' holds {after}, but {before} in {first}: "
            "write one type in all files, or move the files of one type away"
        )

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            ("tab", pa.array(range(10), pa.int32())),
            ("tab", pa.array([float(i) for i in range(9)] + [None])),
            ("tab", pa.array([True] * 10)),
            ("tab", pa.nulls(10)),
            ("user_id", pa.array(["u1"] * 10).dictionary_encode()),
            ("user_id", pa.array(["u1"] * 10, pa.large_string())),
            ("age", pa.array(range(10), pa.int16())),
            ("is_click", pa.array([True] * 10)),
            ("tags", pa.array([["red"]] * 10, pa.large_list(pa.string()))),
            ("tags", pa.array([[]] * 10)),
            ("time", pa.array([datetime(2026, 1, 6)] * 10, pa.timestamp("ms"))),
        ],
        ids=str,
    )
    def test_to_a_type_of_the_same_kind_is_read(self, shop: Shop, column: str, values: pa.Array) -> None:
        self.changed(shop, column, values)
        assert numbers(shop.reader().scan()) == list(range(20))

    def test_to_broken_numbers_where_ids_are_is_an_error(self, shop: Shop) -> None:
        _, second = self.changed(shop, "tab", pa.array([1.5] * 10))
        assert refusal(shop).startswith(f"{second}: column 'tab': 'tab' is a categorical: its ids must be integers")

    def test_matters_not_in_a_column_that_nobody_needs(self, shop: Shop) -> None:
        self.changed(shop, "n", pa.array(["x"] * 10))
        assert sum(batch.rows.num_rows for batch in shop.reader().scan()) == 20

    @pytest.mark.parametrize(("lacking", "named", "has"), [([0], 0, 2), ([1], 1, 0), ([0, 1], 0, 2)])
    def test_of_a_column_that_came_or_went_names_a_file_that_has_it(
        self, shop: Shop, lacking: list[int], named: int, has: int
    ) -> None:
        table = shop.table(30)
        parts = [table.slice(10 * i, 10).drop_columns(["price"] if i in lacking else []) for i in range(3)]
        files = [shop.write(part, f"part-{i}.parquet") for i, part in enumerate(parts)]
        assert refusal(shop) == (
            f"{files[named]}: column 'price' (feature 'price') is missing, "
            f"but {files[has]} has it: write it in all files"
        )


class TestBadRows:
    def test_have_reason_file_and_position(self, shop: Shop) -> None:
        file = shop.write(shop.replaced(shop.table(10), "price", 7, float("nan")))
        (batch,) = shop.reader().scan()
        assert batch.bad.select(["file", "file_row", "reason"]).to_pylist() == [
            {
                "file": str(file),
                "file_row": 7,
                "reason": "feature 'price' is NaN or infinite: write null for unknown",
            }
        ]
        assert numbers([batch]) == [n for n in range(10) if n != 7]

    def test_have_the_position_in_their_own_file_whatever_was_dropped_before(self, shop: Shop) -> None:
        table = shop.table(10)
        shop.write(table, "part-0.parquet")
        repeated = pa.concat_tables([table, table, shop.replaced(shop.table(10, seed=1), "item_id", 3, None)])
        file = shop.write(repeated, "part-1.parquet", row_group_size=6)
        bad = pa.concat_tables([batch.bad for batch in shop.reader().scan()])
        assert bad["file"].to_pylist() == [str(file)]
        assert bad["file_row"].to_pylist() == [23]
        row = pq.read_table(file).slice(23, 1)
        assert pc.is_null(row["item_id"])[0].as_py()

    def test_have_the_first_of_their_faults_as_reason(self, shop: Shop) -> None:
        table = shop.replaced(shop.replaced(shop.table(3), "item_id", 1, None), "is_click", 1, 2)
        shop.write(table)
        (batch,) = shop.reader().scan()
        assert batch.bad.num_rows == 1


class TestSideTables:
    def logs(self, shop: Shop, **sides: Path) -> LogsConfig:
        return shop.logs().model_copy(update=sides)

    def test_hold_the_schemas_columns_of_their_owner(self, shop: Shop) -> None:
        users = pa.table({"user_id": ["u1", "u2"], "age": [1.0, 2.0], "name": ["A", "B"], "price": [1.0, 2.0]})
        pq.write_table(users, shop.folder / "users.parquet")
        tables = load_tables(self.logs(shop, users=shop.folder / "users.parquet"), shop.schema)
        assert set(tables) == {"user"}
        assert tables["user"].table.column_names == ["user_id", "age"]

    def test_that_cannot_be_read_are_named(self, shop: Shop) -> None:
        file = shop.folder / "items.parquet"
        with pytest.raises(LogError, match="cannot be read as Parquet") as caught:
            load_tables(self.logs(shop, items=file), shop.schema)
        assert str(caught.value).startswith(f"{file}: ")
        file.write_text("no Parquet")
        with pytest.raises(LogError, match="cannot be read as Parquet") as caught:
            load_tables(self.logs(shop, items=file), shop.schema)
        assert str(caught.value).startswith(f"{file}: ")

    @pytest.mark.parametrize(
        ("table", "says"),
        [
            ({"user": ["u1"], "age": [1.0]}, "'user_id': the id column is missing"),
            ({"user_id": ["u1", None], "age": [1.0, 2.0]}, "'user_id', row 1: an id is null"),
            ({"user_id": ["u1", "u2", "u1"], "age": [1.0, 2.0, 3.0]}, "id 'u1' stands twice"),
            ({"user_id": ["u1"], "age": ["young"]}, "'age': holds string, but 'age' is numeric"),
        ],
    )
    def test_that_cannot_be_used_are_named_with_their_column(
        self, shop: Shop, table: dict[str, list[Any]], says: str
    ) -> None:
        file = shop.folder / "users.parquet"
        pq.write_table(pa.table(table), file)
        with pytest.raises(LogError) as caught:
            load_tables(self.logs(shop, users=file), shop.schema)
        assert str(caught.value).startswith(f"{file}: column ")
        assert says in str(caught.value)


def test_date_columns_are_times(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(table.set_column(1, "time", table["time"].cast(pa.date32(), safe=False)))
    (batch,) = shop.reader().scan()
    assert batch.rows["time"].to_pylist() == [date(2026, 1, 1 + i) for i in range(10)]
