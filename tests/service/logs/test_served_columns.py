"""Logged values and sources of all forms of requests, and the same scores from the logged values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.jobs.publish import publish
from ranking import FrozenRanker
from ranking.artifacts import bundle
from ranking.served_log.schema import BUNDLE, COMPUTED, MISSING, REQUEST, STORE
from service.app import create_app
from service.settings import Settings
from tests.support.arrow_streams import send, stream
from tests.support.counted_ranker import draw_events, make_counted_ranker
from tests.support.rank_request import rank
from tests.support.redis_server import RedisServer
from tests.support.served_files import ServedFile, score_again, served_files

TOLERANCE = 1e-6
TIME = "2025-06-15T16:06:40Z"
ITEM_IDS = [3, 1, 99, 8]
USER = {"id": "u1", "features": {"age": 31.5, "liked": [4, 5], "recent": [1, 2, 7]}}
CONTEXT = {"tab": "home", "hour": 9}
ITEM_FEATURES: list[dict[str, Any]] = [
    {"price": 2.5, "genres": ["drama"], "words": ["w1", "w2"]},
    {"price": None, "genres": None},
    {"price": 7, "words": []},
    {},
]


@contextmanager
def logging_client(repository: Path, folder: Path, **settings: Any) -> Iterator[TestClient]:
    """A client of a service that writes its served log when the context ends."""
    with TestClient(create_app(Settings(repository=repository, served_log=folder, **settings))) as client:
        yield client


def by_item(file: ServedFile, request_id: str, column: str) -> dict[Any, Any]:
    row = file.row(request_id)
    return dict(zip(row["item_id"], row[column], strict=True))


def assert_row_matches(file: ServedFile, answer: dict[str, Any], ranker: FrozenRanker) -> None:
    """Check a row against the response, and the scores of the response against those of the logged values."""
    row = file.row(answer["request_id"])
    assert row["item_id"] == [item["id"] for item in answer["items"]]
    assert row["score"] == [item["score"] for item in answer["items"]]
    for task in row["tasks"]:
        assert (
            np.float32(row[f"scores.{task}"]).tolist()
            == np.float32([item["scores"][task] for item in answer["items"]]).tolist()
        )
    expected = np.array([[item["scores"][task] for task in row["tasks"]] for item in answer["items"]])
    np.testing.assert_allclose(
        score_again(file, answer["request_id"], ranker), expected.reshape(len(row["item_id"]), -1), atol=TOLERANCE
    )


def test_rows_columns_and_arrow_are_logged_with_the_same_values_and_sources(
    repository_with_tables: Path, tmp_path: Path, hand_ranker: FrozenRanker
) -> None:
    rows = [{"id": i, "features": f} for i, f in zip(ITEM_IDS, ITEM_FEATURES, strict=True)]
    names = ["price", "genres", "words"]
    columns = {name: [features.get(name) for features in ITEM_FEATURES] for name in names}
    options = {"user": USER, "context": CONTEXT, "time": TIME}
    with logging_client(repository_with_tables, tmp_path / "log") as client:
        answers = [
            rank(client, options | {"request_id": "rows", "items": rows}),
            rank(client, options | {"request_id": "columns", "items": {"id": ITEM_IDS, "features": columns}}),
            send(client, stream({"item_id": ITEM_IDS} | columns, options | {"request_id": "arrow"})),
        ]
    (file,) = served_files(tmp_path / "log")
    for answer in answers:
        assert_row_matches(file, answer, hand_ranker)
        request_id = answer["request_id"]
        assert by_item(file, request_id, "item.price") == {3: 2.5, 1: None, 99: 7.0, 8: None}
        assert by_item(file, request_id, "item.genres") == {3: ["drama"], 1: None, 99: None, 8: None}
        assert by_item(file, request_id, "item.words") == {3: ["w1", "w2"], 1: None, 99: [], 8: None}
        prices = hand_ranker.tables["item"].table["price"].to_pylist()
        sources = by_item(file, request_id, "source.price")
        assert (sources[3], sources[99]) == (REQUEST, REQUEST)
        assert sources[1] == (MISSING if prices[1] is None else BUNDLE)
        assert sources[8] == (MISSING if prices[8] is None else BUNDLE)
        row = file.row(request_id)
        assert (row["user.age"], row["source.age"]) == (31.5, REQUEST)
        assert (row["user.recent"], row["user.liked"]) == ([1, 2, 7], [4, 5])
        assert (row["context.tab"], row["context.hour"]) == ("home", 9.0)
        countries = hand_ranker.tables["user"].table["country"].to_pylist()
        assert "user.country" not in row, "no request has a value"
        assert row["source.country"] == (MISSING if countries[1] is None else BUNDLE)
        assert (row["user_id"], row["degraded"], row["counters_as_of"]) == ("u1", False, None)
        assert row["time"].isoformat() == "2025-06-15T16:06:40+00:00"
        assert row["tasks"] == ["click", "like", "watch", "rating"]
    identical = file.table.drop_columns(["request_id"]).to_pylist()
    assert identical[0] == identical[1] == identical[2]


def test_metadata_names_the_version_and_the_types_of_the_columns(repository_with_tables: Path, tmp_path: Path) -> None:
    with logging_client(repository_with_tables, tmp_path / "log") as client:
        rank(client, {"user": USER, "context": {"hour": 9}, "items": [{"id": 1, "features": {"price": 2}}]})
    (file,) = served_files(tmp_path / "log")
    metadata = file.metadata
    assert (metadata["format"], metadata["model"], metadata["version"]) == (1, "feed", "1")
    assert metadata["repository"] == str(repository_with_tables)
    assert metadata["hashed_users"] is False
    columns = {column["name"]: column for column in metadata["columns"]}
    assert columns["price"] == {
        "name": "price",
        "owner": "item",
        "kind": "numeric",
        "type": "double",
        "computed": False,
    }
    assert columns["liked"]["type"] == "large_list<item: int64>"
    assert columns["genres"]["type"] == "null", "no request has a value"
    assert columns["hour"] | {"kind": ""} == {
        "name": "hour", "owner": "context", "kind": "", "type": "double", "computed": False,
    }  # fmt: skip
    assert set(columns) == {"country", "tab", "genres", "liked", "words", "recent", "age", "hour", "price"}


def test_unknown_ids_without_features_are_missing_and_defaults_are_not_logged(
    repository_with_tables: Path, tmp_path: Path, hand_ranker: FrozenRanker
) -> None:
    with logging_client(repository_with_tables, tmp_path / "log") as client:
        answer = rank(client, {"request_id": "r", "user": {"id": "new"}, "items": [{"id": 500}]})
        nobody = rank(client, {"request_id": "n", "items": [{"id": 2}]})
    (file,) = served_files(tmp_path / "log")
    row = file.row("r")
    sources = {name: value for name, value in row.items() if name.startswith("source.")}
    assert all(source in (MISSING, [MISSING]) for source in sources.values()), sources
    assert not [name for name in row if name.startswith(("user.", "context.", "item."))], "no request has a value"
    assert file.row("n")["user_id"] is None
    for response in (answer, nobody):
        assert_row_matches(file, response, hand_ranker)


def test_top_n_and_tasks_log_what_was_returned(
    repository_with_tables: Path, tmp_path: Path, hand_ranker: FrozenRanker
) -> None:
    items = {"id": list(range(20)), "features": {"price": [i + 0.5 for i in range(20)]}}
    with logging_client(repository_with_tables, tmp_path / "log") as client:
        top = rank(client, {"request_id": "top", "items": items, "top_n": 3, "tasks": ["like"]})
        everything = rank(client, {"request_id": "all", "items": items, "objective": {"watch": 1.0}})
        empty = rank(client, {"request_id": "empty", "items": []})
    (file,) = served_files(tmp_path / "log")
    row = file.row("top")
    assert (row["tasks"], len(row["item_id"])) == (["like"], 3)
    assert row["scores.click"] is None
    assert row["item.price"] == [item + 0.5 for item in row["item_id"]]
    for answer in (top, everything):
        assert_row_matches(file, answer, hand_ranker)
    assert empty["items"] == []
    assert file.row("empty")["item_id"] == file.row("empty")["source.price"] == []


def test_ids_of_both_types_are_logged_in_the_type_of_the_model(repository_with_tables: Path, tmp_path: Path) -> None:
    with logging_client(repository_with_tables, tmp_path / "log") as client:
        rank(client, {"request_id": "a", "user": {"id": 7}, "items": [{"id": "1"}, {"id": 2}]})
        rank(client, {"request_id": "b", "user": {"id": "u1"}, "items": [{"id": 5}]})
    (file,) = served_files(tmp_path / "log")
    assert file.table["user_id"].to_pylist() == ["7", "u1"]
    assert sorted(file.row("a")["item_id"]) == [1, 2]


def test_large_requests_in_several_batches_are_logged_as_one_row(
    repository_with_tables: Path, tmp_path: Path, hand_ranker: FrozenRanker
) -> None:
    items = {"id": list(range(60)), "features": {"price": [float(i) for i in range(60)]}}
    with logging_client(repository_with_tables, tmp_path / "log", max_batch_rows=7) as client:
        answer = rank(client, {"request_id": "r", "user": USER, "context": CONTEXT, "items": items})
    (file,) = served_files(tmp_path / "log")
    assert_row_matches(file, answer, hand_ranker)
    assert by_item(file, "r", "item.price") == {i: float(i) for i in range(60)}


def test_values_of_the_store_are_logged_with_their_source(
    repository_without_tables: Path, tmp_path: Path, empty_redis: RedisServer, hand_ranker: FrozenRanker
) -> None:
    empty_redis.client.set("ranker:feed:item:1", '{"price": 4, "genres": ["news"]}')
    empty_redis.client.set("ranker:feed:item:3", '{"price": 5, "words": ["w3"]}')
    empty_redis.client.set("ranker:feed:user:u1", '{"country": "C3", "age": 44}')
    settings = {"store": empty_redis.url, "store_timeout_ms": 10_000}
    items = [{"id": 3, "features": {"price": 1.5}}, {"id": 1}, {"id": 2}]
    with logging_client(repository_without_tables, tmp_path / "log", **settings) as client:
        user = {"id": "u1", "features": {"age": 20}}
        answer = rank(client, {"request_id": "r", "user": user, "context": CONTEXT, "items": items})
    (file,) = served_files(tmp_path / "log")
    assert by_item(file, "r", "item.price") == {3: 1.5, 1: 4.0, 2: None}
    assert by_item(file, "r", "source.price") == {3: REQUEST, 1: STORE, 2: MISSING}
    assert by_item(file, "r", "item.words") == {3: ["w3"], 1: None, 2: None}
    assert by_item(file, "r", "item.genres") == {3: None, 1: ["news"], 2: None}
    row = file.row("r")
    assert (row["user.age"], row["source.age"]) == (20.0, REQUEST)
    assert (row["user.country"], row["source.country"]) == ("C3", STORE)
    bare = ranking.load(repository_without_tables / "feed" / "1")
    assert_row_matches(file, answer, bare)


@pytest.fixture(scope="module", params=[False, True], ids=["integers", "text"])
def counted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A repository with a ranker with counters, and whether its ids are text."""
    text, folder = bool(request.param), tmp_path_factory.mktemp("counted")
    ranker = make_counted_ranker(folder / "counters", text=text)
    bundle.write_bundle(ranker, ranker.complete(draw_events(16, 3, text=text)), folder / "bundle")
    publish(folder / "bundle", folder / "repository")
    return folder / "repository", text


@pytest.mark.parametrize("batch_rows", [500, 4])
def test_counters_and_histories_are_logged_as_they_were_scored(
    counted: tuple[Path, bool], tmp_path: Path, batch_rows: int
) -> None:
    repository, text = counted
    ranker = ranking.load(repository / "counted" / "1")
    items = [f"v{i}" if text else i for i in range(14)]
    users = [f"u{i}" if text else i for i in (1, 5, 40)]
    answers = []
    with logging_client(repository, tmp_path / "log", max_batch_rows=batch_rows) as client:
        for user in [*users, None]:
            body = {"request_id": str(user), "user": {"id": user}, "context": {"tab": "home"}, "time": TIME}
            answers.append(rank(client, body | {"items": {"id": items}}))
        body["user"] = {"id": users[0], "features": {"clicked": items[:2], "user_id_count": 12.25}}
        sent = {"user_tags_click_rate": [None, 0.1] + [None] * 12}
        answers.append(rank(client, body | {"request_id": "sent", "items": {"id": items, "features": sent}}))
        answers.append(rank(client, {"request_id": "now", "user": {"id": users[1]}, "items": {"id": items}}))
    (file,) = served_files(tmp_path / "log")
    for answer in answers:
        assert_row_matches(file, answer, ranker)
    row = file.row(str(users[0]))
    assert row["source.user_id_count"] == row["source.clicked"] == COMPUTED
    assert row["source.user_tags_click_rate"] == [COMPUTED] * len(items)
    assert len({value for value in row["item.user_tags_click_rate"] if value is not None}) > 1
    assert row["user.clicked"], "the user has clicked"
    assert row["counters_as_of"].isoformat().startswith("2025-06-15T")
    complete = ranker.complete(
        pa.table(
            {
                "time": pa.array([row["time"]] * 14, pa.timestamp("us", "UTC")),
                "user_id": [users[0]] * 14,
                "item_id": row["item_id"],
                "tab": ["home"] * 14,
            }
        )
    )
    for column in file.metadata["columns"]:
        if column["computed"]:
            name, owner = column["name"], column["owner"]
            logged, offline = row[f"{owner}.{name}"], complete[name].to_pylist()
            assert (logged if owner == "item" else [logged] * 14) == offline, name
    row = file.row("sent")
    assert (row["user.user_id_count"], row["source.user_id_count"]) == (12.25, REQUEST)
    assert (row["user.clicked"], row["source.clicked"]) == (items[:2], REQUEST)
    assert by_item(file, "sent", "source.user_tags_click_rate")[items[1]] == REQUEST
    assert by_item(file, "sent", "item.user_tags_click_rate")[items[1]] == 0.1
