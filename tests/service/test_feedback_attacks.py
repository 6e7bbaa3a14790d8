"""Feedback as an attack on service processes: floods, quotas, and a folder that disappears."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.http.auth.keys import create_key
from tests.support.background_load import BackgroundLoad
from tests.support.http_client import send_request
from tests.support.memory import memory_bytes
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.system

QUOTA = 4_000_000
"""Quota of a key's files in bytes, which a flood reaches within seconds."""
SLACK = 1_000_000
"""Bytes by which several processes may exceed a quota between two scans."""
RANK_BODY = {"request_id": "r-1", "items": {"id": [f"v{i}" for i in range(50)]}}
EVENTS = [{"item": f"v{i}", "labels": {"click": 1, "watch_time": 12.5}} for i in range(500)]
FLOOD_BODY = {"request_id": "r" * 256, "events": EVENTS}


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_flood_of_one_key_ends_at_its_quota_while_ranking_and_other_keys_go_on(
    repository: Path, tmp_path: Path
) -> None:
    """One key must fill neither the disk nor the memory, and each answer 202 must be a line of a file."""
    file, folder = tmp_path / "keys.json", tmp_path / "feedback"
    flooding = {"X-API-Key": create_key(file, "flood", ("feedback",))}
    other = {"X-API-Key": create_key(file, "other", ("rank", "feedback"))}
    settings = {"workers": 2, "threads": 1, "feedback_dir": folder, "max_log_bytes": 2 * QUOTA}
    with running_service(repository, ["--keys", str(file)], backend="onnxruntime", **settings) as service:
        ranking = BackgroundLoad(service.port, RANK_BODY, count=2, headers=other)
        flood = BackgroundLoad(service.port, FLOOD_BODY, "/v1/feedback", count=16, headers=flooding)
        with ranking.running():
            ranking.wait_for(100)
            before = {pid: memory_bytes(pid, "RssAnon") for pid in service.worker_pids()}
            with flood.running():
                flood.wait_for(500, 429)
                ranking.wait_for(100)
                feedback = {"request_id": "r-1", "events": EVENTS[:2]}
                accepted = send_request(f"{service.url}/v1/feedback", feedback, headers=other)
                assert accepted.status == 202, accepted.body
        assert set(flood.statuses) == {202, 429}
        assert set(ranking.statuses) == {200}
        assert size_of(folder) <= QUOTA + SLACK
        growth = {pid: memory_bytes(pid, "RssAnon") - before[pid] for pid in before}
        assert max(growth.values()) < 150_000_000, growth
        requests = "ranker_feedback_requests_total,outcome"
        count = flood.statuses[202] + 1
        service.wait_for_metric(f"{requests}=accepted", count)
        values = service.metrics()
        assert values[f"{requests}=key_quota"] > 0
        assert values["ranker_feedback_bytes_total"] == size_of(folder)
        service.process.terminate()
        service.process.wait(TIMEOUT_SECONDS)
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert Counter(line["key"] for line in lines) == {"flood": flood.statuses[202], "other": 1}
    assert not list(folder.glob("*.part"))


def test_no_accepted_feedback_is_lost_silently_while_the_folder_is_replaced(repository: Path, tmp_path: Path) -> None:
    """Each answer 202 must be a line of a file, wherever the folder was when it was written."""
    folder, removed = tmp_path / "feedback", tmp_path / "removed"
    removed.mkdir()
    body = {"request_id": "r-1", "events": EVENTS[:1]}
    settings = {"workers": 2, "threads": 1, "backend": "onnxruntime", "feedback_dir": folder}
    with running_service(repository, **settings) as service:
        # A connection per request, so that each worker receives some: one may accept all connections of a burst.
        load = BackgroundLoad(service.port, body, "/v1/feedback", headers={"Connection": "close"})
        with load.running():
            for number in range(5):
                wait_until(lambda: folder.is_dir() and len(list(folder.iterdir())) >= 2)
                folder.rename(removed / str(number))
            wait_until(lambda: folder.is_dir() and list(folder.iterdir()))
        assert set(load.statuses) <= {202, 503}
        service.process.terminate()
        service.process.wait(TIMEOUT_SECONDS)
        assert "was moved or unmounted while it was written" in service.output()
    files = [file for parent in (folder, *removed.iterdir()) for file in parent.iterdir()]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    accepted, rejected = load.statuses[202], load.statuses[503]
    assert accepted <= lines <= accepted + rejected


def test_answers_of_all_workers_are_known_to_each(repository: Path, tmp_path: Path) -> None:
    settings = {"workers": 2, "threads": 1, "backend": "onnxruntime", "feedback_dir": tmp_path / "feedback"}
    reject = "unknown_request,unknown_item"
    now = datetime.now(UTC).isoformat()
    with running_service(repository, **settings, feedback_reject=reject) as service:
        for number in range(40):  # each request has a connection of its own, and so reaches any of the workers
            items = {"id": [f"v{number}"]}
            ranked = send_request(f"{service.url}/v1/rank", {"request_id": f"r-{number}", "items": items})
            assert ranked.status == 200
            event = {"item": f"v{number}", "labels": {"click": 1}, "time": now}
            feedback = {"request_id": f"r-{number}", "events": [event]}
            assert send_request(f"{service.url}/v1/feedback", feedback).status == 202
            wrong = send_request(f"{service.url}/v1/feedback", feedback | {"events": [event | {"item": "v99"}]})
            assert (wrong.status, wrong.json()["errors"][0]["field"]) == (422, "events[0].item")
        unknown = send_request(f"{service.url}/v1/feedback", feedback | {"request_id": "r-999"})
        assert (unknown.status, unknown.json()["errors"][0]["field"]) == (422, "request_id")
        events = "ranker_feedback_events_total,outcome"
        service.wait_for_metric(f"{events}=rejected,reason=unknown_item", 40)
        service.wait_for_metric(f"{events}=accepted,reason=", 40)
