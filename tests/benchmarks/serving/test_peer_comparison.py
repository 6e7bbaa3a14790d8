"""Tests of the comparison with other ways to serve a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import peer_comparison
from benchmarks.serving.peer_comparison import QUICK, Case, compare
from benchmarks.serving.peers.catalog import PEERS, Peer
from benchmarks.serving.sizes import QUICK as QUICK_SIZES
from pipelines.bench.harness import Harness
from pipelines.jobs.publish import publish
from ranking.errors import RankerError

OWN = [peer for peer in PEERS if peer.package is None]
"""Peers that need only the packages of the project."""


@pytest.fixture
def harness(reference: Path, tmp_path: Path) -> Harness:
    publish(reference, tmp_path / "repository")
    return Harness(reference, tmp_path / "repository", QUICK_SIZES, threads=1)


@pytest.mark.nightly(short="test_compare_checks_scores_before_it_measures")
def test_compare_checks_and_measures_every_installed_peer(harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the program: the service and a peer start, score alike and answer every request of the load."""
    missing = Peer("Another server", "another", [{}], "package-that-does-not-exist")
    result = compare(harness, QUICK, [*PEERS, missing])
    assert result["cases"] == [{"candidates": 10, "clients": 1}, {"candidates": 100, "clients": 4}]
    assert [peer["name"] for peer in result["peers"]] == [peer.name for peer in PEERS if peer.is_installed]
    for peer in result["peers"]:
        (turn,) = peer["turns"]
        assert set(turn) == {"10 1", "100 4"}
        for loads in turn.values():
            assert set(loads) == {"ranker", "peer"}
            assert all(load["failed"] == {} and load["per_second"] > 0 for load in loads.values())
    assert "omitting Another server, which is not installed (requirements/bench.lock)" in capsys.readouterr().err


def test_compare_checks_scores_before_it_measures(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_comparison.ScoreCheck, "_score", lambda self, request: {"another item": {"task_0": 0.5}})
    monkeypatch.setattr(Harness, "closed_loop", lambda *arguments: pytest.fail("timed a server with other scores"))
    with pytest.raises(RankerError, match="ranker: the response does not contain exactly the candidates"):
        compare(harness, QUICK, OWN[:1])


@pytest.mark.nightly(short="test_compare_checks_scores_before_it_measures")
def test_search_chooses_the_fastest_settings_of_each_case(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the published ratios: a peer is measured with its best settings; starts a server per setting."""
    rates = {False: {1: 100.0, 4: 300.0}, True: {1: 200.0, 4: 250.0}}
    settings_of: dict[object, Any] = {}
    create = Peer.server

    def server(self: Peer, bundle: Path, matrices: Path, settings: Any, cores: Any) -> Any:
        process = create(self, bundle, matrices, settings, cores)
        settings_of[process] = settings
        return process

    def closed_loop(self: Harness, server: Any, form: str, candidates: int, clients: int, *_: Any) -> Any:
        settings = settings_of.get(server, {"threads": False})
        return {"per_second": rates[settings["threads"]][clients]}

    monkeypatch.setattr(Peer, "server", server)
    monkeypatch.setattr(Harness, "closed_loop", closed_loop)
    peer = replace(OWN[0], settings=[{"threads": threads, "freeze": False} for threads in (False, True)])
    effort = replace(QUICK, trials=2, cases=[Case(10, 1), Case(10, 4)])
    (result,) = compare(harness, effort, [peer])["peers"]
    assert {key: settings["threads"] for key, settings in result["tuned"].items()} == {"10 1": True, "10 4": False}
    assert set(result["turns"][0]) == {"10 1", "10 4"}
