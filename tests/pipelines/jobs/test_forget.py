"""``ranker forget`` on served logs, feedback, joined logs, and a real Redis."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.chunk_names import ChunkNames, footer_digest, row_group_sizes
from pipelines.jobs import row_removal
from ranking.artifacts.feature_store_keys import counter_key, counter_prefix, counter_state_key
from ranking.artifacts.user_hash import UserHash
from ranking.counters.stored_sums import StateValue, encode_value
from ranking.encoding.vocabulary import stable_hash
from tests.pipelines.killed_ranker import killed_ranker
from tests.support.command import ranker
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.waiting import TIMEOUT_SECONDS

METADATA = {b"ranker.served": b'{"format": 1}'}
USERS = [f"u{i % 10}" for i in range(200)]


def write_served(file: Path, users: list[Any], first: int = 0) -> None:
    """Write a file of the served log with one request per user."""
    file.parent.mkdir(exist_ok=True)
    requests = [f"r{first + i}" for i in range(len(users))]
    items = pa.array([["v1", "v2"]] * len(users), pa.list_(pa.string()))
    table = pa.table({"request_id": requests, "user_id": users, "item_id": items}).replace_schema_metadata(METADATA)
    pq.write_table(table, file, row_group_size=max(2, len(users) // 4))


def write_feedback(file: Path, requests: list[str]) -> None:
    file.parent.mkdir(exist_ok=True)
    lines = [{"request_id": r, "key": None, "events": [{"item": "v1", "labels": {"click": 1.0}}]} for r in requests]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    """Requests of u1 (r0, r3, r6, r7), u2 and an anonymous user in two files, their feedback, and a joined log."""
    write_served(tmp_path / "served" / "served-1.parquet", ["u1", "u2", None, "u1", "u3"])
    write_served(tmp_path / "served" / "served-2.parquet", ["u2", "u1", "u1"], first=5)
    write_feedback(tmp_path / "feedback" / "feedback-1.jsonl", ["r0", "r1", "r0", "r2"])
    write_feedback(tmp_path / "feedback" / "feedback-2.jsonl", ["r6"])
    (tmp_path / "log" / "day=2026-01-01").mkdir(parents=True)
    rows = pa.table({"user_id": ["u1", "u2", None, "u1"], "click": [1, 0, 1, 0]})
    pq.write_table(rows, tmp_path / "log" / "day=2026-01-01" / "part-0.parquet")
    return tmp_path


def arguments(loop: Path) -> list[object]:
    return ["--served", loop / "served", "--feedback", loop / "feedback", "--log", loop / "log"]


def content(loop: Path) -> dict[str, Any]:
    """Return the rows of all files."""
    tables = {
        str(file.relative_to(loop)): pq.ParquetFile(file).read().to_pylist() for file in sorted(loop.rglob("*.parquet"))
    }
    lines = {
        file.name: [json.loads(line)["request_id"] for line in file.read_text().splitlines()]
        for file in sorted(loop.rglob("*.jsonl"))
    }
    return tables | lines


def test_forget_removes_the_rows_of_one_user_everywhere_and_only_those(loop: Path) -> None:
    before = content(loop)
    code, out, err = ranker("forget", "u1", *arguments(loop))
    assert code == 0
    assert "was found" not in err
    assert json.loads(out) == {
        "feedback_lines": 3,
        "log_rows": {str(loop / "log"): 2},
        "served_requests": 4,
        "unreadable": [],
    }
    kept = {name: [row for row in rows if row["user_id"] != "u1"] for name, rows in before.items() if "parquet" in name}
    assert content(loop) == kept | {"feedback-1.jsonl": ["r1", "r2"]}
    assert not (loop / "feedback" / "feedback-2.jsonl").exists()  # no line remains
    metadata = pq.read_schema(loop / "served" / "served-1.parquet").metadata
    assert metadata[b"ranker.served"] == METADATA[b"ranker.served"]


def test_forget_repeated_removes_nothing_more(loop: Path) -> None:
    ranker("forget", "u1", *arguments(loop))
    files = {file: file.stat().st_ino for file in loop.rglob("*") if file.is_file()}
    code, out, err = ranker("forget", "u1", *arguments(loop))
    assert (code, json.loads(out)) == (
        0,
        {"feedback_lines": 0, "log_rows": {str(loop / "log"): 0}, "served_requests": 0, "unreadable": []},
    )
    assert "nothing of user 'u1' was found: check the id, or --user-key-file if the service hashes ids" in err
    assert {file: file.stat().st_ino for file in loop.rglob("*") if file.is_file()} == files


@pytest.mark.nightly(short="test_forget_killed_before_any_change_leaves_complete_files_and_can_be_repeated")
def test_two_commands_at_once_forget_both_users(tmp_path: Path) -> None:
    """Protects the files from two writers: each command reads and replaces them while it holds a lock."""
    users = [f"u{i % 50}" for i in range(20_000)]
    for number in range(4):
        write_served(tmp_path / "served" / f"served-{number}.parquet", users, first=number * len(users))
    command = [sys.executable, "-m", "pipelines.cli", "forget", "--served", str(tmp_path / "served")]
    programs = [subprocess.Popen([*command, user]) for user in ("u1", "u2", "u3")]
    assert [program.wait(TIMEOUT_SECONDS) for program in programs] == [0, 0, 0]
    left = pq.read_table(tmp_path / "served", columns=["user_id"])["user_id"].to_pylist()
    assert len(left) == 4 * len(users) * 47 // 50
    assert not {"u1", "u2", "u3"} & set(left)
    assert sorted(file.name for file in (tmp_path / "served").iterdir()) == [f"served-{i}.parquet" for i in range(4)]


def test_forget_integer_user_by_its_decimal_text(tmp_path: Path) -> None:
    write_served(tmp_path / "served" / "served-1.parquet", [1, 11, None, 1])
    code, out, _ = ranker("forget", "1", "--served", tmp_path / "served")
    assert (code, json.loads(out)["served_requests"]) == (0, 2)


def test_forget_hashed_user_with_the_key_of_the_service(tmp_path: Path) -> None:
    write_served(tmp_path / "served" / "served-1.parquet", [UserHash("secret")(7), UserHash("secret")(8)])
    write_feedback(tmp_path / "feedback" / "feedback-1.jsonl", ["r0", "r1"])
    (tmp_path / "key").write_text("secret\n")
    where = ["--served", tmp_path / "served", "--feedback", tmp_path / "feedback"]
    code, out, _ = ranker("forget", "7", *where)
    assert (code, json.loads(out)) == (0, {"feedback_lines": 0, "served_requests": 0, "unreadable": []})
    code, out, _ = ranker("forget", "7", *where, "--user-key-file", tmp_path / "key")
    assert (code, json.loads(out)) == (0, {"feedback_lines": 1, "served_requests": 1, "unreadable": []})


def test_forget_ignores_unfinished_and_hidden_files(loop: Path) -> None:
    (loop / "served" / "served-3.parquet.part").write_bytes(b"torn")
    (loop / "served" / ".served-3.parquet-abc").write_bytes(b"torn")
    (loop / "feedback" / "feedback-3.jsonl.part").write_text('{"request_id": "r0"')
    assert ranker("forget", "u1", *arguments(loop))[0] == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda loop: (loop / "served" / "served-1.parquet").write_bytes(b"x"), "served-1.parquet: is damaged ("),
        (
            lambda loop: pq.write_table(pa.table({"uid": [1]}), loop / "served" / "served-0.parquet"),
            "served-0.parquet: has no column 'user_id' (found: uid)",
        ),
        (
            lambda loop: (loop / "feedback" / "feedback-1.jsonl").write_text('{"request_id": "r0"}\n{"x'),
            "feedback-1.jsonl, line 2: is not feedback",
        ),
    ],
)
def test_what_is_damaged_is_named_and_all_else_forgets_the_user(loop: Path, damage: Any, says: str) -> None:
    damage(loop)
    code, out, err = ranker("forget", "u1", *arguments(loop))
    assert code == 4
    (message,) = json.loads(out)["unreadable"]
    assert says in message
    last = err.splitlines()[-1]
    assert last.startswith("ranker: damaged files may contain data of the user: restore or delete them, then repeat")
    assert last.endswith(message)
    assert not list(loop.rglob(".*"))
    for file in loop.rglob("*.parquet"):
        if file.name not in message:
            assert "u1" not in pq.ParquetFile(file).read()["user_id"].to_pylist()
    assert "r0" not in "".join(file.read_text() for file in loop.rglob("*.jsonl")) or "served-1" in message


def write_other_column(folder: Path) -> Path:
    pq.write_table(pa.table({"uid": [1]}), folder / "part.parquet")
    return folder / "part.parquet"


def write_csv(folder: Path) -> Path:
    (folder / "log.csv").write_text("user_id\nu1\n")
    return folder / "log.csv"


@pytest.mark.parametrize(
    ("write", "says"),
    [
        pytest.param(
            write_other_column,
            "part.parquet: has no column 'user_id' (found: uid); name the column of the user id with --user-column",
            id="other column",
        ),
        pytest.param(
            write_csv,
            "log.csv: is not a Parquet file; 'ranker init' converts a CSV log and CSV tables to Parquet; "
            "remove the user from the CSV file yourself",
            id="csv",
        ),
    ],
)
def test_log_that_cannot_be_searched_is_an_error_before_anything_is_removed(
    loop: Path, write: Callable[[Path], Path], says: str
) -> None:
    """The feedback is found by the served log, so that nothing could be corrected once it is gone."""
    log = write(loop)
    before = content(loop)
    code, out, err = ranker("forget", "u1", *arguments(loop), "--log", log)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith(says)
    assert content(loop) == before


@pytest.mark.parametrize(("folder", "function"), [("log", "read_schema"), ("served", "ParquetFile")])
def test_file_that_cannot_be_opened_is_an_error_before_anything_is_removed(
    loop: Path, monkeypatch: pytest.MonkeyPatch, folder: str, function: str
) -> None:
    def fail(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    before = content(loop)
    with monkeypatch.context() as patch:
        patch.setattr(pq, function, fail)
        code, out, err = ranker("forget", "u1", *arguments(loop))
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"ranker: {loop / folder}/.*: cannot be read \(.*Permission denied\); fix this first\n", err)
    assert content(loop) == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "name what to remove the user from"),
        (["--feedback", "."], "--feedback needs --served"),
        (["--log", ".", "--user-key-file", "missing"], "missing: cannot be read"),
        (["--log", ".", "--user-key-file", "/dev/null"], "/dev/null: is empty, but it must hold the key"),
    ],
)
def test_forget_with_incomplete_options_is_a_usage_error(options: list[str], says: str) -> None:
    code, _, err = ranker("forget", "u1", *options)
    assert (code, says in err.splitlines()[-1]) == (2, True)


def test_forget_missing_folder_is_an_error(tmp_path: Path) -> None:
    code, _, err = ranker("forget", "u1", "--served", tmp_path / "served")
    assert (code, err) == (1, f"ranker: {tmp_path / 'served'}: does not exist\n")


@pytest.mark.system
def test_forget_killed_before_any_change_leaves_complete_files_and_can_be_repeated(tmp_path: Path) -> None:
    """Protects the files of all other users."""
    with killed_ranker(tmp_path, "pipelines.jobs.forget") as ranker:
        for change in count(1):
            served, feedback = tmp_path / str(change) / "served", tmp_path / str(change) / "feedback"
            served.parent.mkdir()
            write_served(served / "served-1.parquet", USERS)
            write_served(served / "served-2.parquet", USERS, first=len(USERS))
            write_feedback(feedback / "feedback-1.jsonl", [f"r{i}" for i in range(2 * len(USERS))])
            command = ["forget", "u1", "--served", served, "--feedback", feedback]
            killed = ranker.run(*command, change=change)
            rows = {pq.read_table(file, columns=["user_id"]).num_rows for file in served.glob("*.parquet")}
            assert rows <= {200, 180}
            ranker.run(*command)
            rows = {pq.read_table(file, columns=["user_id"]).num_rows for file in served.glob("*.parquet")}
            remaining = [json.loads(line)["request_id"] for line in (feedback / "feedback-1.jsonl").open()]
            assert (rows, remaining) == ({180}, [f"r{i}" for i in range(400) if i % 10 != 1])
            if not killed:
                break
    assert change > 6


def check_forget_in_store(client: Any, where: list[object], *, clustered: bool) -> None:
    start = counter_prefix("ranker", "feed", clustered=clustered)
    features = [f"ranker:feed:user:{user}" for user in (7, 8)]
    counters = [counter_key(start, 1, "user", stable_hash(user)) for user in (7, 8)]
    client.set(counter_state_key(start), StateValue(1, 0, 0, {}).encode())
    for key in [*features, *counters]:
        client.set(key, encode_value([(5, b"12345678")]))
    code, out, _ = ranker("forget", "7", *where)
    assert (code, json.loads(out)["store_keys"]) == (0, 2)
    kept = [features[1], *counters, counter_state_key(start), f"{start}forgotten"]
    assert sorted(key.decode() for key in client.scan_iter()) == sorted(kept)
    assert client.get(counters[0]) == encode_value([])


def test_forget_removes_features_and_counters_from_a_cluster(
    empty_cluster: RedisCluster, repository_with_tables: Path
) -> None:
    where = ["--repository", repository_with_tables, "--to", empty_cluster.url]
    check_forget_in_store(empty_cluster.client, where, clustered=True)


def test_forget_removes_features_and_counters_from_the_store(
    empty_redis: RedisServer, repository_with_tables: Path
) -> None:
    where = ["--repository", repository_with_tables, "--to", empty_redis.url]
    check_forget_in_store(empty_redis.client, where, clustered=False)
    code, _, err = ranker("forget", "7", *where, "--model", "other")
    assert (code, "has no model 'other': it has feed" in err) == (2, True)


def test_forget_removes_features_from_the_store_without_a_readable_version(
    empty_redis: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "current.json").write_text("{")
    empty_redis.client.set("ranker:feed:user:7", b"{}")
    code, out, _ = ranker("forget", "7", "--repository", tmp_path, "--to", empty_redis.url)
    assert (code, json.loads(out)["store_keys"]) == (0, 1)
    assert empty_redis.client.get("ranker:feed:user:7") is None


def test_changed_file_keeps_the_names_of_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_removal, "CHUNK_ROWS", 2)
    users = ["u1"] * 3 + ["u2"] * 3 + ["u1", "u3", "u3"]
    file = tmp_path / "log" / "part.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"user_id": users, "row": range(9)}), file, row_group_size=3)
    digest = footer_digest(pq.ParquetFile(file))
    starts = [(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]
    for user, sizes in (("u1", [0, 0, 2, 1, 1, 1]), ("u2", [0, 0, 0, 0, 1, 1])):
        assert ranker("forget", user, "--log", tmp_path / "log")[0] == 0
        parquet = pq.ParquetFile(file)
        assert row_group_sizes(parquet) == sizes
        names = [ChunkNames.of(parquet, footer_digest(parquet)).name(group, 0) for group in range(6)]
        assert names == [f"{digest}:{group}:{start}" for group, start in starts]
    assert pq.read_table(file)["row"].to_pylist() == [7, 8]


def test_file_that_is_made_of_a_changed_one_is_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({"user_id": ["u1", "u2", "u3"]}), file)
    assert ranker("forget", "u1", "--log", tmp_path)[0] == 0
    changed = pq.read_table(file)
    pq.write_table(pa.concat_tables([changed, changed]), file)
    parquet = pq.ParquetFile(file)
    assert b"ranker.chunks" in parquet.schema_arrow.metadata
    assert ChunkNames.of(parquet, footer_digest(parquet)).name(0, 0) == f"{footer_digest(parquet)}:0:0"
