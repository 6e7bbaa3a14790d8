"""Rate limits of API keys."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipelines.cli.main import main
from ranking.errors import ConfigError
from service.app import create_app
from service.http.auth.keys import Key, create_key, read_keys
from service.http.auth.rate_limit import RateLimiter
from service.settings import Settings
from tests.support.metrics import metrics_of

BODY: dict[str, Any] = {"items": {"id": ["v1"]}}


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def key(name: str, rate: float | None) -> Key:
    return Key(name=name, sha256="0" * 64, scopes=("rank",), max_requests_per_second=rate)


def allowed(limiter: RateLimiter, of: Key, attempts: int) -> int:
    return sum(limiter.seconds_until_allowed(of) == 0.0 for _ in range(attempts))


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0, 10.0, 997.0])
def test_limiter_allows_the_requests_of_one_second_at_once_then_the_rate(clock: Clock, rate: float) -> None:
    limiter, limited = RateLimiter(clock), key("shop", rate)
    burst = max(1, int(rate))
    assert allowed(limiter, limited, 5_000) == burst
    total = 0
    for _ in range(1_000):  # ten seconds of ten attempts per 10 ms
        clock.now += 0.01
        total += allowed(limiter, limited, 10)
    assert total == pytest.approx(10 * rate, abs=1)
    clock.now += 3600
    assert allowed(limiter, limited, 5_000) == burst, "an idle key saves up one second only"


def test_limiter_names_the_seconds_until_the_next_request(clock: Clock) -> None:
    limiter, limited = RateLimiter(clock), key("shop", 0.25)
    assert limiter.seconds_until_allowed(limited) == 0.0
    clock.now += 1
    assert limiter.seconds_until_allowed(limited) == pytest.approx(3.0)
    clock.now += 3
    assert limiter.seconds_until_allowed(limited) == 0.0


def test_limiter_separates_keys_and_follows_a_changed_rate(clock: Clock) -> None:
    limiter = RateLimiter(clock)
    assert allowed(limiter, key("shop", 2), 10) == 2
    assert allowed(limiter, key("app", 3), 10) == 3
    assert allowed(limiter, key("free", None), 10) == 10
    clock.now += 1
    assert allowed(limiter, key("shop", 4), 10) == 4


def test_key_above_its_rate_gets_429_before_the_body_is_read_and_others_are_served(
    repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    limited = {"X-API-Key": create_key(file, "shop", ("rank", "feedback"), None, 2.0)}
    other = {"X-API-Key": create_key(file, "app", ("rank",))}
    settings = Settings(repository=repository, keys=file, feedback_dir=tmp_path / "feedback")
    with TestClient(create_app(settings)) as client:
        start = time.monotonic()
        responses = [client.post("/v1/rank", json=BODY, headers=limited) for _ in range(20)]
        seconds = time.monotonic() - start
        statuses = [response.status_code for response in responses]
        assert statuses[:2] == [200, 200]
        assert statuses.count(200) <= 2 + 2 * seconds
        assert set(statuses) == {200, 429}
        rejected = responses[statuses.index(429)]
        assert rejected.headers["retry-after"] == "1"
        assert rejected.json()["detail"] == "API key 'shop' may send 2 requests per second: send fewer"
        invalid = [client.post("/v1/feedback", content=b"{", headers=limited).status_code for _ in range(5)]
        assert 429 in invalid, "the limit holds for all operations together"
        assert {client.post("/v1/rank", json=BODY, headers=other).status_code for _ in range(10)} == {200}
        values = metrics_of(client)
    assert values["ranker_rejections_total,reason=rate_limited"] == statuses.count(429)
    assert values["ranker_requests_total,model=,status=429"] == statuses.count(429)
    assert values["ranker_feedback_requests_total,outcome=rate_limited"] == invalid.count(429)
    assert values.get("ranker_rejections_total,reason=queue_full", 0) == 0


def test_keys_new_stores_the_limit_and_keys_list_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    command = ["keys", "new", str(file), "--scopes", "rank", "--name"]
    assert main([*command, "shop", "--max-requests-per-second", "12.5"]) == 0
    assert main([*command, "app"]) == 0
    assert [entry.max_requests_per_second for entry in read_keys(file)] == [12.5, None]
    assert "max_requests_per_second" not in json.loads(file.read_text())["keys"][1]
    capsys.readouterr()
    assert main(["keys", "list", str(file)]) == 0
    assert capsys.readouterr().out == "shop  rank  never expires  at most 12.5 requests/s\napp   rank  never expires\n"
    assert main(["keys", "list", str(file), "--json"]) == 0
    assert [entry["max_requests_per_second"] for entry in json.loads(capsys.readouterr().out)["keys"]] == [12.5, None]


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e-300"])
def test_keys_new_with_an_impossible_limit_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    command = ["keys", "new", str(tmp_path / "keys.json"), "--scopes", "rank", "--name", "shop"]
    assert main([*command, f"--max-requests-per-second={rate}"]) == 1
    assert "max_requests_per_second" in capsys.readouterr().err


def test_key_file_with_an_impossible_limit_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    create_key(file, "shop", ("rank",))
    content = json.loads(file.read_text())
    content["keys"][0]["max_requests_per_second"] = 0
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"keys.'shop'.max_requests_per_second"):
        read_keys(file)
