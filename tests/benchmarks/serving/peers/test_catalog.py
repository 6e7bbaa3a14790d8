"""Tests of the list of peers."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.serving.peers import catalog, protocol
from benchmarks.serving.peers.catalog import PEERS, Peer
from pipelines.bench import load

ROOT = Path(__file__).parents[4]
FOLDER = Path(protocol.__file__).parent


def test_every_peer_has_an_application_and_at_most_four_settings() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert (FOLDER / f"{peer.module}.py").is_file()
        assert 1 <= len(peer.settings) <= 4
        assert len({frozenset(settings) for settings in peer.settings}) == 1


def test_peers_listen_where_the_load_generator_sends() -> None:
    assert (protocol.HOST, protocol.PATH) == (load.HOST, load.PATH)


def test_peer_with_an_environment_of_its_own_names_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "ENVIRONMENTS", tmp_path)
    peer = Peer("A framework", "framework", [{}], "some-framework", "framework")
    assert not peer.is_installed
    assert peer.lock == "requirements/peers/framework.lock"
    for peer in PEERS:
        assert (ROOT / peer.lock).is_file()


def test_peer_reports_the_version_in_its_environment() -> None:
    assert Peer("A framework", "framework", [{}], "numpy").version == version("numpy")
    assert not Peer("A framework", "framework", [{}], "package-that-does-not-exist").is_installed
