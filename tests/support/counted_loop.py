"""A service that ranks with counters of a store, and what it logs, in simulated time."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from fastapi.testclient import TestClient

from pipelines.jobs.follow_counters import Follower
from pipelines.jobs.followed_version import FollowOptions
from pipelines.jobs.load_counters import load_counters
from pipelines.jobs.publish import publish
from pipelines.loop.sources import LoopSources
from ranking.artifacts import bundle
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX
from service.app import create_app
from service.settings import Settings
from tests.support.counted_ranker import NOW, ZONE, draw_events, item_ids, make_counted_ranker, user_ids

START = datetime.fromtimestamp(NOW / 1e6, ZoneInfo(ZONE)).replace(hour=0, minute=0, second=0, microsecond=0)
"""Midnight before the last impression of the loaded state: 15 June 2025 in Berlin."""
ROUNDS = [START + timedelta(hours=hours) for hours in (26, 33, 47, 48.5, 56, 73, 74.5)]
"""Times at which requests are ranked: on the days after the loaded state, also shortly before and after midnight."""


class CountedLoop:
    """A service that logs to a folder, and a command that follows it.

    Args:
        folder: folder of everything.
        url: address of the store.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        counted = make_counted_ranker(folder / "counters", text=True)
        bundle.write_bundle(counted, counted.complete(draw_events(16, 3, text=True)), folder / "bundle")
        publish(folder / "bundle", folder / "repository")
        for name in ("served", "feedback"):
            (folder / name).mkdir()
        self.sources = LoopSources(folder / "served", folder / "feedback", folder / "repository", "counted")
        self.random = np.random.default_rng(0)
        self.requests = 0

    def load(self) -> None:
        load_counters(self.folder / "repository", self.url, "counted", DEFAULT_KEY_PREFIX)

    def follower(self) -> Follower:
        return Follower(FollowOptions(self.sources, self.url, DEFAULT_KEY_PREFIX, 600))

    def serve(self, time: datetime, requests: int = 5, user: str | None = None, **options: Any) -> None:
        """Rank at a time with the counters of the store, log it, and write feedback of two minutes later.

        Args:
            time: time of the requests.
            requests: their number.
            user: their user; None: another one each time.
            options: settings of the service.
        """
        settings = Settings(
            repository=self.folder / "repository",
            store=self.url,
            store_timeout_ms=5_000,
            served_log=self.folder / "served",
            **options,
        )
        lines = []
        with TestClient(create_app(settings)) as client:
            for _ in range(requests):
                self.requests += 1
                time += timedelta(seconds=1)
                items = self.random.choice(item_ids(text=True), 6, replace=False).tolist()
                body = {
                    "request_id": f"r{self.requests}",
                    "user": {"id": user or str(self.random.choice(user_ids(text=True)))},
                    "context": {"tab": str(self.random.choice(["home", "search"]))},
                    "time": time.isoformat(),
                    "items": [{"id": item} for item in items],
                }
                answer = client.post("/v1/rank", json=body)
                assert (answer.status_code, answer.json()["degraded"]) == (200, False)
                clicked = (time + timedelta(minutes=2)).isoformat()
                labels = [{"click": 1.0, "watch": float(watch)} for watch in self.random.exponential(2.0, 2)]
                events = [
                    {"item": item, "labels": label, "time": clicked} for item, label in zip(items, labels, strict=False)
                ]
                lines.append({"request_id": body["request_id"], "key": None, "received": clicked, "events": events})
        file = self.folder / "feedback" / f"feedback-{time:%Y%m%dT%H%M%S}Z-000000000000.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
