"""What is served follows current.json; what cannot be served changes nothing."""

from __future__ import annotations

import gc
import logging
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.jobs.publish import publish
from ranking.errors import BundleError
from tests.service.models.conftest import Service

Serve = Callable[..., Service]


def alter(file: Path) -> bytes:
    """Changes a byte in the middle; what was there."""
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    return content


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


class TestFollowing:
    def test_another_version_back_and_forth(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        for version in (2, 1, 2):
            service.release(version=version)
            assert service.roles == {"current": str(version)}

    def test_a_canary_and_a_shadow_that_are_promoted_are_not_loaded_again(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        service.release(canary={"version": 2, "weight": 0.1}, shadow=2)
        lineup = service.models.get("feed")
        assert service.roles == {"current": "1", "canary": "2", "shadow": "2"}
        assert lineup.canary is lineup.shadow
        assert lineup.weight == 0.1
        service.release(version=2)
        assert service.roles == {"current": "2"}
        assert service.models.get("feed").current is lineup.canary

    def test_a_model_that_is_published_later(self, repo: Path, bundle: Path, serve: Serve) -> None:
        service = serve(repo)
        publish(bundle, repo, "shop")
        service.reconciler.poll()
        assert service.models.get("shop").current.version == "1"
        assert service.roles == {"current": "1"}

    def test_a_model_that_is_taken_away_is_served_as_before(self, repo: Path, bundle: Path, serve: Serve) -> None:
        publish(bundle, repo, "shop")
        service = serve(repo)
        shutil.rmtree(repo / "shop")
        service.reconciler.poll()
        assert service.models.get("shop").current.version == "1"

    def test_metrics_say_who_serves_in_which_role(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        service.release(canary={"version": 2, "weight": 0.1})
        info = 'ranker_model_info{{model="feed",role="{}",version="{}"}}'.format
        assert [service.metric(info("current", "1")), service.metric(info("canary", "2"))] == [1, 1]
        service.release(version=2)
        rows = [("current", "1"), ("canary", "2"), ("current", "2")]
        assert [service.metric(info(*row)) for row in rows] == [0, 0, 1]
        assert service.metric('ranker_model_load_seconds{model="feed"}') > 0


class TestRefusing:
    def test_a_bad_bundle_leaves_the_old_version_and_is_told_and_counted_once(
        self, repo: Path, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = serve(repo)
        alter(repo / "feed" / "2" / "weights.safetensors")
        service.release(version=2)
        for _ in range(3):
            service.reconciler.poll()
        assert service.roles == {"current": "1"}
        assert service.metric('ranker_model_load_failures_total{model="feed"}') == 1
        (said,) = refusals(caplog)
        assert said.startswith("version 2 of 'feed' is refused: ")
        assert "weights.safetensors was altered" in said

    def test_a_bundle_that_is_mended_is_served(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        weights = repo / "feed" / "2" / "weights.safetensors"
        whole = alter(weights)
        service.release(version=2)
        weights.write_bytes(whole)
        service.reconciler.poll()
        assert service.roles == {"current": "2"}
        assert service.reconciler.rejected == {}

    def test_a_version_that_is_not_there_yet_is_served_when_it_is(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        shutil.move(repo / "feed" / "2", repo / "later")
        (repo / "feed" / "current.json").write_text('{"version": 2}')
        service.reconciler.poll()
        assert service.roles == {"current": "1"}
        assert "2 is not there" in service.reconciler.rejected["feed", 2].reason
        (repo / "later").rename(repo / "feed" / "2")
        service.reconciler.poll()
        assert service.roles == {"current": "2"}

    def test_a_bad_canary_does_not_keep_the_rest_from_serving(self, repo: Path, serve: Serve, bundle: Path) -> None:
        publish(bundle, repo)
        service = serve(repo)
        alter(repo / "feed" / "1" / "golden.parquet")
        service.release(version=3, canary={"version": 1, "weight": 0.5}, shadow=2)
        assert service.roles == {"current": "3", "shadow": "2"}
        assert service.models.get("feed").weight == 0.0

    @pytest.mark.parametrize("content", ["{", '{"version": "2"}', '{"version": 2, "canary": 3}'])
    def test_a_damaged_current_json_changes_nothing(
        self, repo: Path, serve: Serve, content: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = serve(repo)
        (repo / "feed" / "current.json").write_text(content)
        for _ in range(3):
            service.reconciler.poll()
        assert service.roles == {"current": "1"}
        (said,) = refusals(caplog)
        assert said.startswith("what is to be served of 'feed' is refused: ")
        (repo / "feed" / "current.json").write_text('{"version": 2}')
        service.reconciler.poll()
        assert service.roles == {"current": "2"}

    def test_an_unexpected_failure_is_a_refusal_too_and_is_told_whole(
        self, repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = serve(repo)

        def broken(*_: Any) -> None:
            raise MemoryError

        monkeypatch.setattr("service.models.reconciler.load", broken)
        service.release(version=2)
        assert service.roles == {"current": "1"}
        assert service.reconciler.rejected["feed", 2].reason == "MemoryError"
        assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.ERROR] == [True]

    def test_an_operator_may_have_it_tried_again(
        self, repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = serve(repo)
        with monkeypatch.context() as patch:
            patch.setattr("service.models.reconciler.load", lambda *_: (repo / "nothing").stat())
            service.release(version=2)
        service.reconciler.poll()
        assert service.roles == {"current": "1"}
        service.reconciler.reload("feed")
        assert service.roles == {"current": "2"}


class TestTheFirstLook:
    def test_a_model_that_cannot_be_served_does_not_stop_others(self, repo: Path, bundle: Path, serve: Serve) -> None:
        publish(bundle, repo, "shop")
        alter(repo / "shop" / "1" / "manifest.json")
        service = serve(repo)
        assert service.roles == {"current": "1"}
        assert service.models.routing("shop") is None
        assert service.models.ready

    def test_needs_one_that_can_be_served(self, repo: Path, serve: Serve) -> None:
        alter(repo / "feed" / "1" / "manifest.json")
        with pytest.raises(BundleError, match=r"manifest\.json was altered"):
            serve(repo)

    def test_needs_the_default_model(self, repo: Path, bundle: Path, serve: Serve) -> None:
        publish(bundle, repo, "shop")
        alter(repo / "shop" / "1" / "manifest.json")
        with pytest.raises(BundleError, match=r"shop.*manifest\.json was altered"):
            serve(repo, default_model="shop")
        assert serve(repo, default_model="feed").models.ready


class TestDraining:
    @pytest.fixture
    def without_collector(self) -> Iterator[None]:
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    def mapped(self, repo: Path) -> set[str]:
        """Versions whose files this process has mapped."""
        prefix = f"{repo}/feed/"
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.partition(prefix)[2].split("/")[0] for line in lines if prefix in line}

    @pytest.mark.usefixtures("without_collector")
    def test_the_old_version_goes_with_its_last_request_even_if_nobody_collects_cycles(
        self, repo: Path, serve: Serve
    ) -> None:
        service = serve(repo)
        in_flight = service.models.get("feed").current
        old = weakref.ref(in_flight)
        service.release(version=2)
        assert self.mapped(repo) == {"1", "2"}
        assert dict(service.reconciler.retired) == {("feed", 1): in_flight}
        del in_flight
        assert old() is None
        assert dict(service.reconciler.retired) == {}
        assert self.mapped(repo) == {"2"}

    @pytest.mark.usefixtures("without_collector")
    def test_versions_do_not_pile_up(self, repo: Path, serve: Serve) -> None:
        service = serve(repo)
        served = []
        files = open_files()
        for turn in range(6):
            service.release(version=2 - turn % 2)
            served.append(weakref.ref(service.models.get("feed").current))
        assert [each() is not None for each in served] == [False] * 5 + [True]
        assert self.mapped(repo) == {"1"}
        assert open_files() == files

    def test_what_is_hidden_from_the_collector_goes_too_and_even_in_a_cycle(self, repo: Path, serve: Serve) -> None:
        gc.freeze()
        try:
            service = serve(repo)
            cycle: list[Any] = [service.models.get("feed").current]
            cycle.append(cycle)
            old = weakref.ref(cycle[0])
            gc.freeze()
            del cycle
            service.release(version=2)
            assert gc.get_freeze_count() > 0
            assert old() is not None
            service.release(version=1)
            assert old() is None
        finally:
            gc.unfreeze()
