"""The whole loop with a real service: what it logs, joined with feedback, is what training reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from pipelines.counters.columns import write_joined_columns
from pipelines.data.reader import LogReader
from pipelines.jobs.join import join
from pipelines.jobs.publish import publish
from pipelines.loop.sources import LoopSources
from ranking.artifacts import bundle
from ranking.encoding.feature_table import fill_features
from service.app import create_app
from service.settings import Settings
from tests.support.counted_ranker import make_counted_ranker
from tests.support.served_files import logged_table, served_files

WINDOW = 3_600


@pytest.mark.parametrize("text", [False, True])
def test_training_reads_exactly_the_features_that_were_scored(tmp_path: Path, text: bool) -> None:
    ranker = make_counted_ranker(new_folder(tmp_path / "state"), text=text)
    golden = ranker.counter_features.complete(
        fill_features(pa.table({"item_id": [ids(text)[0]]}), ranker.schema, ranker.tables)
    )
    bundle.write_bundle(ranker, golden, tmp_path / "bundle")
    publish(tmp_path / "bundle", tmp_path / "repository")
    served, feedback, log = (tmp_path / name for name in ("served", "feedback", "log"))
    answers = [serve_and_click(tmp_path, text)]
    until = datetime.now(UTC) + timedelta(seconds=2 * WINDOW)
    counts = join(LoopSources(served, feedback), log, WINDOW, until)
    (file,) = served_files(served)
    assert (counts.requests, counts.rows, counts.used) == (3, 12, 3)
    assert counts.labels == {"click": 3, "watch": 3}

    reader = LogReader(log, ranker.schema, {})
    columns = write_joined_columns(reader, ranker.schema, new_folder(tmp_path / "columns"))
    rows = pa.concat_tables([chunk.rows for chunk in reader.with_joined(columns).scan()]).combine_chunks()
    expected = logged_table(file, ranker)
    for name in sorted({feature.column for feature in ranker.schema.inputs}):
        assert rows[name].to_pylist() == expected[name].to_pylist(), name
    encoded, scored = ranker.encoder.encode(rows), ranker.encoder.encode(expected)
    assert encoded.dense.tobytes() == scored.dense.tobytes()
    scores, _ = ranker.score_completed(rows, ranker.schema.tasks)
    sent = [[item["scores"][t] for t in ranker.schema.task_names] for answer in answers[0] for item in answer["items"]]
    np.testing.assert_allclose(scores, np.array(sent), atol=1e-6)
    best = [answer["items"][0]["id"] for answer in answers[0]]
    clicked = rows.filter(pa.compute.equal(rows["click"], 1))
    assert clicked["item_id"].to_pylist() == best
    assert clicked["position"].to_pylist() == [0, 0, 0]
    assert clicked["watch"].to_pylist() == [2.5] * 3
    assert pq.read_schema(next(log.rglob("*.parquet"))).field("time").type == pa.timestamp("us", "Europe/Berlin")


def ids(text: bool) -> list[Any]:
    return ["v1", "v6", "v19", "unseen"] if text else [1, 6, 19, 77]


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def serve_and_click(folder: Path, text: bool) -> list[dict[str, Any]]:
    """Rank for three users, and send a click on the first item of each answer."""
    settings = Settings(
        repository=folder / "repository",
        served_log=folder / "served",
        feedback_dir=folder / "feedback",
    )
    answers = []
    with TestClient(create_app(settings)) as client:
        for user in (1, 5, 900):
            items = [{"id": item, "features": {"price": 0.1 * i} if i % 2 else {}} for i, item in enumerate(ids(text))]
            body = {"user": {"id": f"u{user}" if text else user}, "context": {"tab": "home"}, "items": items}
            response = client.post("/v1/rank", json=body)
            assert response.status_code == 200, response.text
            answer: dict[str, Any] = response.json()
            event = {"item": answer["items"][0]["id"], "labels": {"click": 1, "watch": 2.5}}
            sent = client.post("/v1/feedback", json={"request_id": answer["request_id"], "events": [event]})
            assert sent.status_code == 202, sent.text
            answers.append(answer)
    return answers
