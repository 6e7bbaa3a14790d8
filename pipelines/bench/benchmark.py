"""``ranker bench``: runs the measurements, each a process on cores of its own, and keeps what they found."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipelines.bench.load import Load
from pipelines.bench.overload import Overload
from pipelines.bench.requests import FORMS, Requests
from pipelines.bench.rivalry import Rivalry
from pipelines.bench.serving import Server, ours
from pipelines.bench.sizes import Sizes
from pipelines.console import log
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle
from ranking.errors import RankerError
from service.settings import Settings

PACKAGES = ("torch", "onnxruntime", "uvicorn", "uvloop", "httptools", "litserve")
OPEN_FORM, OPEN_CLIENTS = "ids", 64
FEW, MANY = 10, 32
"""Candidates and clients that batching is measured with."""
MIDDLE, BARE_TURNS = 100, 5
"""Candidates that the bare engine is measured with, and how many turns for each of the others: they are short."""
BUSY = 0.8
"""Of a core; a load generator that is busier than this waits for itself."""


class Bench:
    """Measures one bundle.

    Args:
        folder: the bundle.
        repository: that holds it alone.
        sizes: how much.
        threads: cores of whatever is measured; load comes from the others, if there are any.
    """

    def __init__(self, folder: Path, repository: Path, sizes: Sizes, threads: int) -> None:
        self._folder, self._repository, self._sizes, self._threads = folder, repository, sizes, threads
        self._cores = sorted(os.sched_getaffinity(0))
        if threads > len(self._cores):
            raise RankerError(f"--threads {threads}: this process may use {len(self._cores)} cores")
        self._measured = self._cores[:threads]
        ranker = bundle.load(folder)
        self._requests = Requests(ranker, folder)
        self._most = self._requests.most

    def engines(self) -> dict[str, Any]:
        """Contenders within one process."""
        sizes = self._sizes
        candidates = ",".join(map(str, self._candidates()))
        how = (self._folder, candidates, sizes.turns, sizes.call_seconds, self._threads)
        return self._child("engines", *how, cores=self._measured)

    def http(self) -> dict[str, Any]:
        """The service in closed loops, every form of request."""
        sizes = self._sizes
        turns: list[dict[str, Any]] = []
        for _ in range(sizes.turns):
            found: dict[str, Any] = {}
            with self._ours(server_timing=True) as server:
                for form in FORMS:
                    for candidates in self._candidates():
                        for clients in sizes.clients:
                            found[f"{form} {candidates} {clients}"] = self._closed(server, form, candidates, clients)
            turns.append(found)
        return {"forms": list(FORMS), "candidates": self._candidates(), "clients": sizes.clients, "turns": turns}

    def bare(self) -> dict[str, Any]:
        """The service, and before and after each loop the engine alone on the same cores."""
        candidates = min(MIDDLE, self._most)
        alone, loads = [self._alone(candidates)], []
        with self._ours() as server:
            for _ in range(BARE_TURNS * self._sizes.turns):
                loads.append(self._closed(server, OPEN_FORM, candidates, OPEN_CLIENTS))
                alone.append(self._alone(candidates))
        turns = [
            {"service": load, "engine": sum(around) / 2} for load, around in zip(loads, pairwise(alone), strict=True)
        ]
        return {"candidates": candidates, "clients": OPEN_CLIENTS, "turns": turns}

    def open(self) -> dict[str, Any]:
        """The service in open loops, at shares of what it does at most."""
        sizes, turns = self._sizes, []
        asked = [candidates for candidates in sizes.open if candidates <= self._most]
        for turn in range(sizes.turns):
            found: dict[str, Any] = {}
            with self._ours() as server:
                for candidates in asked:
                    most = self._closed(server, OPEN_FORM, candidates, OPEN_CLIENTS)["per_second"]
                    found[f"{candidates} most"] = most
                    for share in sizes.shares:
                        rate = share * most
                        load = self._load(server, OPEN_FORM, candidates, sizes.open_seconds, rate=rate, seed=turn)
                        found[f"{candidates} {share}"] = load
            turns.append(found)
        return {"form": OPEN_FORM, "candidates": asked, "shares": sizes.shares, "turns": turns}

    def batching(self) -> dict[str, Any]:
        """The service with batches of many requests, and with one request a batch."""
        turns = []
        for _ in range(self._sizes.turns):
            with self._ours() as batched:
                together = self._closed(batched, OPEN_FORM, FEW, MANY)
            with self._ours(max_batch_rows=FEW) as single:
                alone = self._closed(single, OPEN_FORM, FEW, MANY)
            turns.append({"batches": together, "no batches": alone})
        return {"candidates": FEW, "clients": MANY, "turns": turns}

    def overload(self) -> dict[str, Any]:
        """The service at five times what it does at most."""
        return self._overload().crowd()

    def attacks(self) -> dict[str, Any]:
        """The service while some clients attack it."""
        return self._overload().attacks()

    def rival(self) -> dict[str, Any] | None:
        """The service beside LitServe on the same cores; None where that is not installed."""
        if importlib.util.find_spec("litserve") is None:
            log("litserve is not installed (requirements/bench.lock): left out")
            return None
        rivalry = Rivalry(self._folder, self._sizes.tuning, self._sizes.turns, self._ours, self._closed)
        cases = [(candidates, cores) for cores in (1, 2) for candidates in (10, 100)]
        return rivalry.measure([(n, self._cores[:cores]) for n, cores in cases if cores <= len(self._cores)])

    def _candidates(self) -> list[int]:
        return [candidates for candidates in self._sizes.candidates if candidates <= self._most]

    def _overload(self) -> Overload:
        sizes = self._sizes
        return Overload(min(sizes.crowd, self._most), sizes.turns, self._ours, self._load, sizes.crowd_seconds)

    def _alone(self, candidates: int) -> float:
        """Requests a second of the engine which the service chooses, in half the time of a loop."""
        how = (self._folder, candidates, self._sizes.load_seconds / 2, self._threads)
        rate: float = self._child("bare", *how, cores=self._measured)["per_second"]
        return rate

    def _ours(self, cores: Sequence[int] | None = None, **settings: Any) -> Server:
        """The service, ready to be started."""
        cores = cores or self._measured
        everyone = self._most * max(self._sizes.clients)  # a refusal would be no answer, and fast
        how = {"workers": len(cores), "threads": 1, "max_queue_rows": everyone, **settings}
        return ours(Settings(repository=self._repository, **how), cores)

    def _load(
        self,
        server: Server,
        form: str,
        candidates: int,
        seconds: float,
        clients: int = 0,
        *,
        rate: float = 0.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """What a load finds, and the server's CPU milliseconds a request."""
        bodies = self._requests.bodies(form, candidates)
        load = Load(server.port, bodies, seconds, self._sizes.warm, clients, rate, seed)
        before = server.cpu_seconds()
        found = self._child("load", cores=self._beside(server.cores), given=load.to_json())
        found["cpu"] = (server.cpu_seconds() - before) * 1000 / found["sent"]
        how = f"{clients} clients" if clients else f"{rate:.0f}/s"
        times = f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"
        log(f"{form} {candidates} {how}: {found['per_second']:.1f}/s, {times}")
        if found["client_cpu"] > BUSY:
            log(f"times include the load generator's own: it was busy for {found['client_cpu']:.0%} of this")
        return found

    def _closed(self, server: Server, form: str, candidates: int, clients: int) -> dict[str, Any]:
        return self._load(server, form, candidates, self._sizes.load_seconds, clients)

    def _beside(self, cores: Sequence[int]) -> list[int]:
        """The cores that load comes from."""
        return [core for core in self._cores if core not in cores] or self._cores

    def _child(self, script: str, *arguments: Any, cores: Sequence[int], given: str = "") -> dict[str, Any]:
        command = [sys.executable, "-m", f"pipelines.bench.{script}", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        done = subprocess.run(
            command,
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise RankerError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def bench(folder: Path | None, sizes: Sizes, threads: int, only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Measures the parts asked for; yields each, by its name, as soon as it is measured, so that none is lost.

    Args:
        folder: a bundle; None: the reference model, for which there are aims.
        sizes: how much.
        threads: cores of whatever is measured.
        only: parts.

    Raises:
        RankerError: a measurement failed; says what it wrote.
    """
    with tempfile.TemporaryDirectory() as work:
        measured = folder or _reference(Path(work) / "bundle", sizes)
        publish(measured, Path(work) / "repository")
        runs = Bench(measured, Path(work) / "repository", sizes, threads)
        about = {"threads": threads, "model": "reference" if folder is None else folder.name, "machine": machine()}
        for part in only:
            log(f"measuring: {part}")
            found = getattr(runs, part)()
            if found is not None:
                yield {part: {**about, "measured": found}}


def _reference(folder: Path, sizes: Sizes) -> Path:
    from pipelines.bench.reference import write_reference  # needs what trains

    write_reference(folder, sizes.items, sizes.users)
    return folder


def machine() -> dict[str, Any]:
    """What it ran on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
