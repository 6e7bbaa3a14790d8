"""Compare the service with other ways to serve the same bundle, on the same core and with the same requests."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.measured_server import paused
from benchmarks.serving.peer_scores import ScoreCheck
from benchmarks.serving.peers.catalog import PEERS, Peer, Settings
from benchmarks.serving.peers.forms import PLAIN, Form
from benchmarks.serving.peers.matrix_files import write_matrices
from pipelines.bench.connection import RequestBody
from pipelines.bench.harness import Envelope, Harness
from pipelines.bench.server_process import ServerProcess
from pipelines.console import print_status

PART = "peers"
FORM = "ids"


@dataclass(frozen=True)
class Case:
    """A load: closed loop, candidates per request and number of clients."""

    candidates: int
    clients: int

    @property
    def key(self) -> str:
        """Key of the case in results."""
        return f"{self.candidates} {self.clients}"


@dataclass(frozen=True)
class Effort:
    """Amount of work of the comparison.

    Attributes:
        cases: loads to measure.
        trials: maximum number of settings to try per peer.
        turns: turns of each peer.
        seconds: seconds of each load within a turn; a trial takes the ``load_seconds`` of the harness.
    """

    cases: Sequence[Case]
    trials: int
    turns: int
    seconds: float


FULL = Effort((Case(10, 1), Case(10, 32), Case(100, 32), Case(500, 32)), trials=4, turns=3, seconds=2.0)
QUICK = Effort((Case(10, 1), Case(100, 4)), trials=1, turns=1, seconds=0.2)


def compare(harness: Harness, effort: Effort, peers: Sequence[Peer] = PEERS) -> dict[str, Any]:
    """Check the scores of each peer, search its settings for each case, then measure it and the service in turns.

    Raises:
        RankerError: a peer does not start, or its scores differ from those of the library.
    """
    with tempfile.TemporaryDirectory() as work:
        comparison = _Comparison(harness, effort, Path(work))
        installed = []
        for peer in peers:
            if peer.is_installed:
                installed.append(peer)
            else:
                print_status(f"omitting {peer.name}, which is not installed ({peer.lock})")
        comparison.check_service()
        tuned = {peer.name: comparison.search(peer) for peer in installed}
        turns: dict[str, list[Any]] = {peer.name: [] for peer in installed}
        for turn in range(effort.turns):
            for peer in installed:
                turns[peer.name].append(comparison.measure(peer, tuned[peer.name], service_first=turn % 2 == 0))
    results = [
        {"name": peer.name, "version": peer.version, "tuned": tuned[peer.name], "turns": turns[peer.name]}
        for peer in installed
    ]
    cases = [{"candidates": case.candidates, "clients": case.clients} for case in effort.cases]
    return {"cases": cases, "peers": results}


class _Comparison:
    """Measures peers with one core for the server.

    Args:
        harness: starts the service and the load.
        effort: amount of work.
        matrices: empty folder for the matrices of the peers.
    """

    def __init__(self, harness: Harness, effort: Effort, matrices: Path) -> None:
        self._harness, self._effort, self._matrices = harness, effort, matrices
        self._cores = harness.cores[:1]
        self._check = ScoreCheck(harness.folder)
        write_matrices(harness.folder, matrices)

    def check_service(self) -> None:
        """Compare the scores of the service with the library."""
        with self._harness.service(self._cores) as server:
            self._check_scores("ranker", server, PLAIN)

    def search(self, peer: Peer) -> dict[str, Settings]:
        """Return the settings with the most requests/s for each case."""
        rates: dict[str, list[tuple[float, Settings]]] = {case.key: [] for case in self._effort.cases}
        for settings in peer.settings[: self._effort.trials]:
            print_status(f"{peer.name}, {settings}")
            with self._server(peer, settings) as server:
                self._check_scores(peer.name, server, peer.form)
                for case in self._effort.cases:
                    load = self._load(case, server, peer.form)
                    rates[case.key].append((load["per_second"], settings))
        return {key: max(trials, key=lambda trial: trial[0])[1] for key, trials in rates.items()}

    def measure(self, peer: Peer, tuned: dict[str, Settings], *, service_first: bool) -> dict[str, Any]:
        """Measure a peer and the service, one directly after the other; returns their loads by case."""
        loads: dict[str, Any] = {}
        by_settings = sorted(self._effort.cases, key=lambda case: repr(tuned[case.key]))
        with self._harness.service(self._cores) as service:
            for _, cases in itertools.groupby(by_settings, lambda case: repr(tuned[case.key])):
                group = list(cases)
                with self._server(peer, tuned[group[0].key]) as server:
                    contenders = [("ranker", service, PLAIN, server), ("peer", server, peer.form, service)]
                    order = contenders if service_first else contenders[::-1]
                    for case in group:
                        loads[case.key] = {}
                        for name, process, form, other in order:
                            with paused(other):
                                loads[case.key][name] = self._load(case, process, form, self._effort.seconds)
        return loads

    def _load(
        self, case: Case, server: ServerProcess, form: Form = PLAIN, seconds: float | None = None
    ) -> dict[str, Any]:
        envelope = Envelope(form.path, lambda body: RequestBody(form.wrap(body.data)))
        return self._harness.closed_loop(server, FORM, case.candidates, case.clients, seconds, envelope)

    def _check_scores(self, name: str, server: ServerProcess, form: Form) -> None:
        for count in sorted({case.candidates for case in self._effort.cases}):
            self._check.check(name, server.port, self._harness.bodies(FORM, count), form)

    def _server(self, peer: Peer, settings: Settings) -> ServerProcess:
        return peer.server(self._harness.folder, self._matrices, settings, self._cores)
