"""Start the service and the load generator for one bundle, each on its own cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.bench.connection import RequestBody
from pipelines.bench.load import PATH, LoadSpec
from pipelines.bench.requests import Requests
from pipelines.bench.server_process import ServerProcess, service_process
from pipelines.bench.sizes import Sizes
from pipelines.console import print_status
from ranking.artifacts import bundle
from ranking.errors import RankerError
from service.settings import ROWS_PER_REQUEST, Settings


@dataclass(frozen=True)
class Envelope:
    """Form in which a server other than the service expects a request.

    Attributes:
        path: path of the requests.
        wrap: returns the request for one of the service.
    """

    path: str
    wrap: Callable[[RequestBody], RequestBody]


PLAIN = Envelope(PATH, lambda body: body)
"""Requests of the service."""

MAX_CLIENT_CPU = 0.8
"""CPU utilization of the load generator above which it delays its own requests."""


class Harness:
    """Runs measurements of one bundle.

    Args:
        folder: the bundle.
        repository: repository that contains only this bundle.
        sizes: amount of work.
        threads: cores of the measured process; load comes from the other cores, if there are any.

    Raises:
        RankerError: the bundle cannot be loaded, or there are fewer cores than threads.
    """

    def __init__(self, folder: Path, repository: Path, sizes: Sizes, threads: int) -> None:
        self.folder, self.sizes, self.threads, self._repository = folder, sizes, threads, repository
        self.cores = sorted(os.sched_getaffinity(0))
        if threads > len(self.cores):
            raise RankerError(f"--threads {threads}: this process may use {len(self.cores)} cores")
        self._requests = Requests(bundle.load(folder), folder)
        self.max_candidates = self._requests.max_candidates

    @property
    def candidates(self) -> list[int]:
        """Numbers of candidates to measure, as far as the bundle has as many items."""
        return [count for count in self.sizes.candidates if count <= self.max_candidates]

    def bodies(self, form: str, candidates: int) -> tuple[RequestBody, ...]:
        """Return the requests of a load, in a form of ``requests.FORMS``."""
        return self._requests.bodies(form, candidates)

    def service(self, cores: Sequence[int] | None = None, **settings: Any) -> ServerProcess:
        """Create a process of the service that rejects no request unless the settings say otherwise."""
        cores = cores or self.cores[: self.threads]
        max_queue_rows = max(self.max_candidates, ROWS_PER_REQUEST) * max(self.sizes.clients)
        options = {"workers": len(cores), "threads": 1, "max_queue_rows": max_queue_rows, **settings}
        return service_process(Settings(repository=self._repository, **options), cores)

    def closed_loop(
        self,
        server: ServerProcess,
        form: str,
        candidates: int,
        clients: int,
        seconds: float | None = None,
        envelope: Envelope = PLAIN,
    ) -> dict[str, Any]:
        """Measure a server in a closed loop, by default for ``load_seconds``; see ``load.summarize``.

        Args:
            server: running server.
            form: form of the requests, one of ``requests.FORMS``.
            candidates: candidates per request.
            clients: number of clients.
            seconds: duration of the measurement.
            envelope: form in which the server expects a request.
        """
        seconds = self.sizes.load_seconds if seconds is None else seconds
        return self._measure(server, form, candidates, seconds, clients=clients, envelope=envelope)

    def open_loop(
        self, server: ServerProcess, form: str, candidates: int, rate: float, seconds: float, seed: int
    ) -> dict[str, Any]:
        """Measure a server in an open loop of ``rate`` requests/s; see ``load.summarize``."""
        return self._measure(server, form, candidates, seconds, rate=rate, seed=seed)

    def run_module(
        self, module: str, *arguments: Any, cores: Sequence[int] | None = None, stdin: str = ""
    ) -> dict[str, Any]:
        """Run a module as a process, by default on the measured cores, and parse the JSON that it prints.

        Raises:
            RankerError: the process failed; the message ends with its output on stderr.
        """
        command = [sys.executable, "-m", module, *map(str, arguments)]
        process_cores = cores or self.cores[: self.threads]
        process = subprocess.run(
            command,
            input=stdin,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, process_cores),
        )
        if process.returncode:
            raise RankerError(f"{' '.join(command)} failed: {process.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return result

    def _measure(
        self,
        server: ServerProcess,
        form: str,
        candidates: int,
        seconds: float,
        *,
        clients: int = 0,
        rate: float = 0.0,
        seed: int = 0,
        envelope: Envelope = PLAIN,
    ) -> dict[str, Any]:
        """Run a load; adds ``cpu``, the CPU milliseconds of the server per request, to its summary."""
        bodies = tuple(envelope.wrap(body) for body in self.bodies(form, candidates))
        spec = LoadSpec(server.port, bodies, seconds, self.sizes.warmup_seconds, clients, rate, seed, envelope.path)
        load_cores = [core for core in self.cores if core not in server.cores] or self.cores
        before = server.cpu_seconds()
        summary = self.run_module("pipelines.bench.load", cores=load_cores, stdin=spec.to_json())
        summary["cpu"] = (server.cpu_seconds() - before) * 1000 / summary["sent"]
        load = f"{clients} clients" if clients else f"{rate:.0f} requests/s"
        latencies = f"p50 {summary['p50']:.1f} ms, p99 {summary['p99']:.1f} ms"
        print_status(f"{form}, {candidates} candidates, {load}: {summary['per_second']:.1f} responses/s, {latencies}")
        if summary["client_cpu"] > MAX_CLIENT_CPU:
            print_status(
                f"the load generator used {summary['client_cpu']:.0%} of a core: latencies include its own delays"
            )
        return summary
