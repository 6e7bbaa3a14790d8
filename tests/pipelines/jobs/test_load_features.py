"""``ranker items load`` and ``ranker users load`` with a real Redis."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command import ranker as load
from tests.support.redis_cluster import RedisCluster, monitored_redis
from tests.support.redis_server import RedisServer

ITEMS: dict[str, Any] = {
    "item_id": [7, 8, 9],
    "price": [1.5, None, 3.0],
    "genres": [["news"], [], None],
    "words": pa.array([["a"], None, ["b", "c"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "colour": ["red", None, "blue"],
}


@pytest.fixture
def bundle(repository_with_tables: Path) -> Path:
    return repository_with_tables / "feed" / "1"


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_table(tmp_path / "items.parquet", ITEMS)


def write_table(file: Path, columns: dict[str, Any], **how: Any) -> Path:
    pq.write_table(pa.table(columns), file, **how)
    return file


def stored(empty_redis: RedisServer) -> dict[str, Any]:
    """Return the keys and values of the store."""
    keys = sorted(empty_redis.client.keys())
    return {key.decode(): json.loads(empty_redis.client.get(key)) for key in keys}


def test_items_are_stored_as_one_json_object_per_key(empty_redis: RedisServer, bundle: Path, items: Path) -> None:
    code, out, err = load("items", "load", items, "--bundle", bundle, "--to", empty_redis.url, "--model", "feed")
    assert code == 0
    assert stored(empty_redis) == {
        "ranker:feed:item:7": {"genres": ["news"], "words": ["a"], "price": 1.5},
        "ranker:feed:item:8": {"genres": [], "words": None, "price": None},
        "ranker:feed:item:9": {"genres": None, "words": ["b", "c"], "price": 3.0},
    }
    assert json.loads(out) == {
        "to": empty_redis.url,
        "keys": "ranker:feed:item:*",
        "columns": ["genres", "words", "price"],
        "items": 3,
        "known": 3,
    }
    assert "ignored columns that the ranker does not use: colour" in err
    assert "loading items: 3 rows" in err


def test_items_are_stored_in_a_cluster_and_by_the_name_of_a_primary(
    empty_cluster: RedisCluster, bundle: Path, tmp_path: Path
) -> None:
    ids = list(range(2_500))
    items = write_table(tmp_path / "many.parquet", {"item_id": ids, "price": [float(item) for item in ids]})
    with monitored_redis(tmp_path, "secret") as monitored:
        sentinel_url = monitored.url.replace("//", "//:secret@") + "?sentinel_password=secret-sentinel"
        for url, client in ((empty_cluster.url, empty_cluster.client), (sentinel_url, monitored.primary.client)):
            code, out, err = load("items", "load", items, "--bundle", bundle, "--to", url, "--model", "feed")
            assert (code, json.loads(out)["items"]) == (0, 2_500), err
            assert "secret" not in out + err
            assert json.loads(client.get("ranker:feed:item:1234")) == {"price": 1234.0}
            assert sum(1 for _ in client.scan_iter(count=1_000)) == 2_500
    assert all(server.client.dbsize() > 500 for server in empty_cluster.servers)


def test_users_of_a_folder_are_stored_with_prefix_and_ttl(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "users"
    folder.mkdir()
    write_table(folder / "a.parquet", {"user_id": ["u1"], "age": [31]})
    write_table(folder / "b.parquet", {"user_id": ["ü2"], "country": ["C1"], "age": [None]})
    code, out, err = load(
        "users", "load", folder, "--bundle", bundle, "--to", empty_redis.url, "--prefix", "p", "--ttl", 1000
    )
    assert (code, json.loads(out)["users"]) == (0, 2)
    assert stored(empty_redis) == {"p:hand:user:u1": {"age": 31.0}, "p:hand:user:ü2": {"country": "C1", "age": None}}
    assert 900 < empty_redis.client.ttl("p:hand:user:u1") <= 1000
    assert "columns that are missing and are taken from the bundle: liked, recent" in err


@pytest.mark.parametrize(
    "ids", [["7", "8"], pa.array([7.0, 8.0]), pa.array([7, 8], pa.uint8()), pa.array(["7", "8"]).dictionary_encode()]
)
def test_ids_of_another_type_are_stored_under_the_keys_of_the_model(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path, ids: Any
) -> None:
    file = write_table(tmp_path / "items.parquet", {"item_id": ids, "price": [1.5, 2.5]})
    code, out, _ = load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url, "--model", "feed")
    assert (code, json.loads(out)["known"]) == (0, 2)
    assert stored(empty_redis) == {"ranker:feed:item:7": {"price": 1.5}, "ranker:feed:item:8": {"price": 2.5}}


def test_new_ids_are_stored_with_a_note(empty_redis: RedisServer, bundle: Path, tmp_path: Path) -> None:
    file = write_table(tmp_path / "users.parquet", {"user_id": ["new-1", "5"], "age": [31, 32]})
    code, out, err = load("users", "load", file, "--bundle", bundle, "--to", empty_redis.url)
    assert (code, json.loads(out)["known"]) == (0, 0)
    assert "none of the 2 users are known to the bundle, whose user ids look like 'u" in err
    assert empty_redis.client.dbsize() == 2


@pytest.mark.parametrize(
    ("owner", "columns", "reason"),
    [
        ("item", {"item_id": ["7", "v8"], "price": [1.0, 2.0]}, "'item_id': ids must be integers of 64 bits .*'v8' is"),
        ("item", {"item_id": ["7", "08"], "price": [1.0, 2.0]}, "'item_id': ids must be integers of 64 bits .*'08' is"),
        ("item", {"item_id": ["7", "7"], "price": [1.0, 2.0]}, "'item_id', row 1: the id is a duplicate"),
        ("user", {"user_id": [1, 2], "age": [31, 32]}, "'user_id': holds integers, but the ids of the bundle are text"),
        (
            "user",
            {"user_id": [1.5, 2.0], "age": [31, 32]},
            "'user_id': ids must be integers of 64 bits or text; 1.5 is",
        ),
        ("user", {"user_id": pa.array([1], pa.date32()), "age": [3]}, "'user_id': holds date32.*, but ids are"),
        ("user", {"user_id": ["u1"], "liked": [["1", "x"]]}, "'liked': ids must be integers of 64 bits .*'x' is"),
    ],
)
def test_ids_that_the_model_cannot_know_are_rejected(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path, owner: str, columns: dict[str, Any], reason: str
) -> None:
    file = write_table(tmp_path / "rows.parquet", columns)
    code, _, err = load(f"{owner}s", "load", file, "--bundle", bundle, "--to", empty_redis.url)
    assert code == 1
    assert re.search(f"rows.parquet: column {reason}", err.splitlines()[-1])
    assert empty_redis.client.dbsize() == 0


def test_rows_of_several_row_groups_are_stored(empty_redis: RedisServer, bundle: Path, tmp_path: Path) -> None:
    count = 2_500
    file = write_table(
        tmp_path / "items.parquet", {"item_id": list(range(count)), "price": [1.0] * count}, row_group_size=1_100
    )
    assert load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url)[0] == 0
    assert empty_redis.client.dbsize() == count


def test_store_address_defaults_to_ranker_store(
    empty_redis: RedisServer, bundle: Path, items: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKER_STORE", empty_redis.url)
    assert load("items", "load", items, "--bundle", bundle)[0] == 0
    assert empty_redis.client.dbsize() == 3
    monkeypatch.delenv("RANKER_STORE")
    code, _, err = load("items", "load", items, "--bundle", bundle)
    assert (code, err) == (2, "ranker: name the store with --to redis://HOST:PORT/DB or the variable RANKER_STORE\n")


NAN = float("nan")
INVALID_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"item_id": [7, 8, 7], "price": [1.0] * 3}, "column 'item_id', row 2: the id is a duplicate of an earlier row"),
    ({"item_id": [7, None], "price": [1.0] * 2}, "column 'item_id', row 1: the id is null"),
    ({"item_id": [7, 8], "price": [1.0, NAN]}, "column 'price', row 1: is NaN or infinite: write null for unknown"),
    ({"item_id": [7, 8], "price": [1.0, -1.0]}, "column 'price', row 1: is −1 or less, but its transform is log1p"),
    ({"item_id": [7], "price": ["high"]}, "column 'price': holds string, but 'price' is numeric: write numbers"),
    ({"item_id": [7], "genres": ["news"]}, "column 'genres': holds string, but 'genres' is a bag: write lists of ids"),
    ({"id": [7], "price": [1.0]}, "has no id column 'item_id' (found: id, price)"),
    ({"item_id": [7], "colour": [1.0]}, "has no column that the ranker reads for items (genres, words, price)"),
]


@pytest.mark.parametrize(("columns", "message"), INVALID_TABLES)
def test_invalid_row_is_named_before_any_write(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    file = write_table(tmp_path / "items.parquet", columns, row_group_size=1)
    code, out, err = load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(f"ranker: {file}: {message}")
    assert empty_redis.client.dbsize() == 0


def test_rows_with_dates_are_stored_as_of_now(empty_redis: RedisServer, bundle: Path, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    times = [now - timedelta(days=2), now - timedelta(days=1), now + timedelta(days=1), now + timedelta(days=1)]
    rows = {"item_id": [7, 7, 7, 8], "price": [1.0, 2.0, 3.0, 4.0], "valid_from": times}
    file = write_table(tmp_path / "items.parquet", rows, row_group_size=1)
    code, out, err = load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url, "--model", "feed")
    assert (code, "ignored" in err) == (0, False)
    assert stored(empty_redis) == {"ranker:feed:item:7": {"price": 2.0}}
    assert (json.loads(out)["items"], json.loads(out)["known"]) == (1, 1)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([datetime(2026, 1, 1)] * 2, "column 'item_id', row 1: the id is a duplicate of an earlier row: keep one row"),
        ([datetime(2026, 1, 1), None], "column 'valid_from', row 1: is null: every row needs a time"),
        ([1, 2], "column 'valid_from': holds int64: write timestamps or dates"),
    ],
)
def test_invalid_dates_are_named_before_any_write(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path, times: list[Any], says: str
) -> None:
    rows = {"item_id": [7, 7], "price": [1.0, 2.0], "valid_from": times}
    file = write_table(tmp_path / "items.parquet", rows, row_group_size=1)
    code, _, err = load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url)
    assert code == 1
    assert err.splitlines()[-1].startswith(f"ranker: {file}: {says}")
    assert empty_redis.client.dbsize() == 0


def test_missing_or_invalid_file_is_rejected(empty_redis: RedisServer, bundle: Path, tmp_path: Path) -> None:
    code, _, err = load("items", "load", tmp_path / "nothing", "--bundle", bundle, "--to", empty_redis.url)
    assert (code, "nothing: no such" in err) == (1, True)
    (tmp_path / "items.parquet").write_text("item_id,price")
    code, _, err = load("items", "load", tmp_path / "items.parquet", "--bundle", bundle, "--to", empty_redis.url)
    assert (code, "items.parquet: cannot be read" in err) == (1, True)


def test_unreachable_store_is_named_without_its_password(bundle: Path, items: Path) -> None:
    code, _, err = load("items", "load", items, "--bundle", bundle, "--to", "redis://me:secret@127.0.0.1:1/0")
    assert code == 1
    assert err.startswith("ranker: redis://127.0.0.1:1/0: cannot be reached (Error 111 connecting to 127.0.0.1:1.")
    assert "secret" not in err


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "redis://:se/cret@host",
        "redis://:secret@127.0.0.1:1/0?nonsense=1",
        "redis+cluster://:secret@127.0.0.1:1/?nonsense=1",
        "redis+sentinel://:secret@127.0.0.1:1/primary?nonsense=1",
        "redis+sentinel://127.0.0.1:1/primary?sentinel_password=secret&sentinel_nonsense=1",
    ],
)
def test_invalid_address_is_rejected_without_its_password(bundle: Path, items: Path, url: str) -> None:
    code, _, err = load("items", "load", items, "--bundle", bundle, "--to", url)
    assert (code, "secret" in err or "se/cret" in err) == (2, False)


def test_store_error_reports_the_written_rows_and_no_value(
    empty_redis: RedisServer, bundle: Path, tmp_path: Path
) -> None:
    count = 30_000
    words = [[os.urandom(50).hex()] for _ in range(count)]
    file = write_table(tmp_path / "items.parquet", {"item_id": list(range(count)), "words": words})
    empty_redis.client.config_set("maxmemory", empty_redis.client.info("memory")["used_memory"] + 3_000_000)
    try:
        code, out, err = load("items", "load", file, "--bundle", bundle, "--to", empty_redis.url)
    finally:
        empty_redis.client.config_set("maxmemory", 0)
    assert (code, out) == (1, "")
    line = err.splitlines()[-1]
    assert "cannot be written (command not allowed when used memory > 'maxmemory'" in line
    assert "of 30,000 items are written completely: fix the store and load again" in line
    assert words[0][0][:20] not in err
    assert 0 < empty_redis.client.dbsize() < count
