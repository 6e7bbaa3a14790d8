"""Both clients against a real service."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ranking.client import (
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RankingClient,
    RequestTimeoutError,
    RequestTooLargeError,
)
from service.engine import engine
from service.http.auth.keys import create_key
from tests.ranking.client.conftest import OpenClient
from tests.support.http_client import post_json
from tests.support.ports import HOST, free_port, occupied_port
from tests.support.server_thread import BlockedScorer, server_thread

ROOT = Path(__file__).parents[3]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
IDS = [f"v{i}" for i in range(12)]
OPTIONS: dict[str, Any] = {
    "user": {"id": "u3", "features": {"age": 31}},
    "context": {"surface": "home", "hour": 9},
    "tasks": ["click", "like"],
    "objective": {"click": 1.0, "like": 5.0},
}


def test_rank_returns_what_the_service_answers(client: Any, url: str) -> None:
    ranking = client.rank(IDS, **OPTIONS, top_n=5, explain=True, request_id="r-1")
    body = {**OPTIONS, "items": {"id": IDS}, "top_n": 5, "explain": True, "request_id": "r-1"}
    answer = post_json(f"{url}/v1/rank", body)
    assert (ranking.request_id, ranking.model, ranking.version, ranking.degraded) == ("r-1", "feed", "1", False)
    assert [item.id for item in ranking.items] == [item["id"] for item in answer["items"]]
    for item, expected in zip(ranking.items, answer["items"], strict=True):
        assert (item.score, item.scores, item.missing) == (expected["score"], expected["scores"], expected["missing"])
    assert ranking.explanation.experts_run == answer["explain"]["experts_run"]
    assert ranking.explanation.tasks == answer["explain"]["tasks"]
    assert client.rank(IDS).explanation is None


def test_rank_rows_columns_and_table_give_equal_scores(client: Any) -> None:
    prices = [None if i % 3 == 0 else i + 0.5 for i in range(len(IDS))]
    rows = [{"id": i, "features": {} if p is None else {"price": p}} for i, p in zip(IDS, prices, strict=True)]
    by_row = client.rank(rows, **OPTIONS)
    by_column = client.rank({"id": IDS, "features": {"price": prices}}, **OPTIONS)
    assert by_row.items == by_column.items
    ranked = client.rank_table(pa.table({"item_id": IDS, "price": prices}), **OPTIONS, request_id="r-2")
    assert (ranked.request_id, ranked.model, ranked.version) == ("r-2", "feed", "1")
    table = ranked.table
    assert table["id"].to_pylist() == [item.id for item in by_row.items]
    assert table["score"].to_pylist() == [item.score for item in by_row.items]
    assert table["missing"].to_pylist() == [item.missing for item in by_row.items]
    for scores, item in zip(table["scores"].to_pylist(), by_row.items, strict=True):
        assert scores.keys() == item.scores.keys()
        assert [np.float32(scores[task]) for task in scores] == [np.float32(item.scores[task]) for task in scores]


def test_rank_table_of_several_chunks_keeps_all_rows(client: Any) -> None:
    table = pa.concat_tables([pa.table({"item_id": [i]}) for i in IDS])
    assert sorted(client.rank_table(table).table["id"].to_pylist()) == sorted(IDS)


def test_rank_without_id_gives_each_request_its_own(client: Any) -> None:
    assert len({client.rank(IDS).request_id for _ in range(3)}) == 3


def test_feedback_of_a_ranking_is_accepted(client: Any) -> None:
    ranking = client.rank(IDS, user="u3")
    events = [{"item": item.id, "labels": {"click": 1}, "time": datetime.now(UTC)} for item in ranking.items[:2]]
    accepted = client.feedback(ranking.request_id, events, model=ranking.model)
    assert (accepted.accepted, accepted.flagged) == (2, {})
    unknown = client.feedback(ranking.request_id, [{"item": "v1", "labels": {"clikc": 1}}])
    assert unknown.flagged == {"unknown_label": 1}


def test_models_and_readiness(client: Any) -> None:
    (model,) = client.models()
    assert (model.name, model.ready, model.default, model.version, model.canary) == ("feed", True, True, "1", None)
    details = client.model("feed")
    assert details.versions == ["1"]
    assert "click" in {task["name"] for task in details.outputs}
    assert client.ready()
    assert client.rank(IDS, model="feed").model == "feed"


def test_errors_of_the_service_have_their_classes(client: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"422: .*clikc") as error:
        client.rank(IDS, tasks=["clikc"], request_id="r-9")
    assert error.value.status == 422
    assert error.value.field is not None
    assert error.value.field.startswith("tasks")
    assert error.value.request_id == "r-9"
    with pytest.raises(NotFoundError, match="nothing"):
        client.rank(IDS, model="nothing")
    with pytest.raises(NotFoundError, match="a b"):
        client.model("a b")
    with pytest.raises(RequestTooLargeError, match="at most 100"):
        client.rank([f"v{i}" for i in range(101)])
    with pytest.raises(InvalidRequestError, match="no column 'item_id'"):
        client.rank_table(pa.table({"itemid": IDS}))


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([{"id": "v1"}, {"features": {}}], {}, r"422: items\[1\]\.id: is missing"),
        ([{"id": "v1"}, "v2"], {}, r"422: items\[1\]: must be an object"),
        ({"features": {}}, {}, r"422: items\.id: is missing"),
        ({"id": ["v1"], "features": {"price": []}}, {}, r"422: items\.features\.price: has 0 values for 1 ids"),
        (IDS, {"tasks": "click"}, "422: tasks: must be a list"),
        (IDS, {"objective": {"click": float("nan")}}, r"422: objective\.click: must be a number"),
        (IDS, {"deadline_ms": 0}, r"422: deadline_ms: must be at least 0\.001"),
    ],
)
def test_invalid_argument_is_reported_by_the_service(
    client: Any, items: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        client.rank(items, **options)


def test_keys_decide_on_operations(open_client: OpenClient, repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secret = create_key(keys, "tests", ("rank",))
    with server_thread(repository, keys=keys, feedback_dir=tmp_path / "feedback") as port:
        url = f"http://{HOST}:{port}"
        assert open_client(url, secret).rank(IDS).model == "feed"
        with pytest.raises(AuthenticationError):
            open_client(url, "wrong").rank(IDS)
        with pytest.raises(AuthenticationError):
            open_client(url).models()
        with pytest.raises(PermissionDeniedError, match="feedback"):
            open_client(url, secret).feedback("r-1", [{"item": "v1", "labels": {"click": 1}}])


def test_deadline_that_passes_before_scoring_is_an_error(client: Any) -> None:
    with pytest.raises(DeadlineExceededError):
        client.rank(IDS, deadline_ms=0.001)


def test_timeout_of_the_client_ends_a_call(
    open_client: OpenClient, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = BlockedScorer()
    monkeypatch.setattr(engine, "score_batch", scorer)
    with server_thread(repository) as port:
        try:
            with pytest.raises(RequestTimeoutError, match=r"no response within 0\.3 s"):
                open_client(f"http://{HOST}:{port}", timeout=0.3).rank(IDS)
        finally:
            scorer.release.set()


def test_unreachable_service_is_not_ready(open_client: OpenClient) -> None:
    client = open_client(f"http://{HOST}:{free_port()}")
    assert not client.ready()
    with pytest.raises(ConnectionFailedError, match=HOST):
        client.models()
    with occupied_port() as port:
        assert not open_client(f"http://{HOST}:{port}", timeout=0.2).ready()


def test_threads_share_a_client(url: str) -> None:
    with RankingClient(url) as client, ThreadPoolExecutor(8) as pool:
        names = [f"r-{n}" for n in range(64)]
        rankings = list(pool.map(lambda name: client.rank(IDS, request_id=name), names))
    assert [ranking.request_id for ranking in rankings] == names
    assert all(ranking.items == rankings[0].items for ranking in rankings)


def test_programs_of_the_guide_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for program in PROGRAMS:
        exec(compile(program.replace("http://127.0.0.1:8000", url), "docs/client.md", "exec"), {})
        outputs.append([line.split()[0] for line in capsys.readouterr().out.splitlines()])
    threads, asynchronous = outputs
    assert sorted(threads) == ["v1", "v2"]
    assert len(asynchronous) == 3
    assert set(asynchronous) <= {"v1", "v2"}


def test_programs_of_the_guide_pass_strict_type_checks(tmp_path: Path) -> None:
    files = [tmp_path / f"program_{number}.py" for number in range(len(PROGRAMS))]
    for file, program in zip(files, PROGRAMS, strict=True):
        file.write_text(program)
    done = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8000"}, "must start with http"),
        ({"base_url": "http://"}, "must start with http:// or https:// and a host"),
        ({"base_url": "http://localhost:port"}, "base_url is 'http://localhost:port': "),
        ({"timeout": 0}, "must be above 0 and at most 86400 seconds"),
        ({"timeout": float("inf")}, "must be above 0 and at most 86400 seconds"),
        ({"retries": -1}, "must not be negative"),
        ({"api_key": "a\nb"}, "only visible ASCII characters"),
        ({"api_key": ""}, "at least one character"),
    ],
)
def test_client_with_invalid_arguments_raises(open_client: OpenClient, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_client(**{"base_url": "http://127.0.0.1", **arguments})


def test_client_imports_no_packages_of_models_and_of_the_service() -> None:
    program = "import sys, ranking.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not modules & {"service", "fastapi", "onnxruntime", "pydantic", "safetensors", "torch"}
    ours = {name for name in modules if name.startswith("ranking.") and not name.startswith("ranking.client")}
    assert ours == {"ranking.errors", "ranking.selection"}
