"""The supervisor of worker processes: hung workers, crash loops, and workers that cannot start."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client.values
import pytest
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from uvicorn.supervisors import multiprocess

from service.server import supervisor as supervisors
from service.server import worker as workers
from service.server.supervisor import MAX_DELAY_SECONDS, MAX_FAILED_STARTS, POLL_SECONDS, STABLE_SECONDS, Supervisor
from service.server.worker import START_SECONDS, Worker
from service.server.worker_link import WorkerLink
from service.settings import Settings
from service.telemetry.shared_values import SharedCollector
from tests.support.background_load import BackgroundLoad
from tests.support.http_client import NO_RESPONSE, post_json, read_until_closed, send_request
from tests.support.metrics import samples
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service, started_service
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

TIMEOUT = 30.0
"""``worker_timeout_seconds`` of the simulated workers."""


class SimulatedProcess:
    """A worker process that the test ends."""

    pids = itertools.count(1)

    def __init__(self, *_: object) -> None:
        self.pid, self.exitcode = next(self.pids), None

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self) -> None:
        assert self.exitcode is not None

    def end(self, code: int) -> None:
        self.exitcode = code  # type: ignore[assignment]

    def kill(self) -> None:
        self.end(-signal.SIGKILL)


class Simulation:
    """A supervisor of two workers whose processes and clock are simulated.

    Attributes:
        now: Time in seconds.
        supervisor: The supervisor; its workers have been started.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(supervisors, "time", clock)
        monkeypatch.setattr(workers, "time", clock)
        monkeypatch.setattr(multiprocess, "get_subprocess", SimulatedProcess)
        monkeypatch.setattr(multiprocess.signal, "signal", lambda *_: None)
        monkeypatch.setattr(prometheus_client.values, "ValueClass", prometheus_client.values.ValueClass)
        settings = Settings(repository=folder, workers=2, worker_timeout_seconds=TIMEOUT)
        config = uvicorn.Config("unused", workers=2)
        self.supervisor = Supervisor(config, [], settings, folder)
        self.supervisor.init_processes()
        self._folder, self._links = folder, dict[Worker, WorkerLink]()

    @property
    def first(self) -> Any:
        return self.supervisor.processes[0]

    @property
    def second(self) -> Any:
        return self.supervisor.processes[1]

    def link(self, worker: Worker) -> WorkerLink:
        """The end of the connection that is in the worker process."""
        if worker not in self._links:
            self._links[worker] = WorkerLink(worker.child_conn, all_ready=False)
        return self._links[worker]

    def serve(self, worker: Worker) -> None:
        """Let a worker report that it serves, and poll."""
        self.link(worker).mark_ready()
        self.link(worker).report_serving(ends=False)
        self.supervisor._poll()

    def poll(self, seconds: float, *serving: Worker) -> None:
        """Poll until this time has passed; these workers report meanwhile."""
        for _ in range(round(seconds / POLL_SECONDS)):
            self.now += POLL_SECONDS
            for worker in serving:
                self.link(worker).report_serving(ends=False)
            self.supervisor._poll()

    def restarts(self, reason: str) -> float:
        registry = CollectorRegistry()
        registry.register(SharedCollector(self._folder, self.supervisor._shared_values))
        return samples(generate_latest(registry).decode())[f"ranker_worker_restarts_total,reason={reason}"]


@pytest.fixture
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    return Simulation(tmp_path, monkeypatch)


def test_supervisor_polls_starting_workers_after_each_report_until_all_serve(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (simulation.link(worker) for worker in simulation.supervisor.processes)
    reports = iter([
        first.report_starting,
        first.report_waiting,
        second.report_waiting,
        partial(first.report_serving, ends=False),
        first.mark_ready,
        second.mark_ready,  # its event loop does not run yet
        partial(second.report_serving, ends=False),
    ])  # fmt: skip
    wait = supervisors.connection.wait

    def report_and_wait(connections: list[Any], timeout: float) -> object:
        next(reports)()
        return wait(connections, 0.0)

    monkeypatch.setattr(supervisors.connection, "wait", report_and_wait)
    simulation.supervisor.keep_subprocess_alive()
    assert not list(reports)
    assert first.may_listen
    assert second.may_listen
    assert first.all_ready
    assert second.all_ready
    simulation.supervisor.keep_subprocess_alive()  # does not wait for another report


def test_worker_that_waits_for_permission_is_noticed_if_its_thread_has_reported_last(simulation: Simulation) -> None:
    link = simulation.link(simulation.first)
    link.report_waiting()
    link.report_starting()  # by the thread that reports until the event loop runs
    simulation.supervisor._poll()
    assert link.may_listen


def test_supervisor_with_starting_workers_returns_to_handle_a_signal(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(_: list[Any], timeout: float) -> None:
        waits.append(timeout)
        if len(waits) == 3:
            simulation.supervisor.signal_queue.append(signal.SIGTERM)

    monkeypatch.setattr(supervisors.connection, "wait", wait)
    simulation.supervisor.keep_subprocess_alive()
    assert waits == [POLL_SECONDS] * 3


def test_worker_is_hung_after_the_timeout_and_before_its_first_report_after_the_start_timeout(
    simulation: Simulation,
) -> None:
    first, second = simulation.first, simulation.second
    simulation.serve(first)
    simulation.poll(TIMEOUT)
    assert (first.hung, second.hung) == (False, False)
    simulation.now += 86_400.0  # the machine was suspended
    simulation.poll(1.0, first)
    assert first.process.is_alive()
    simulation.poll(TIMEOUT)
    assert not first.hung
    simulation.poll(POLL_SECONDS)
    assert first.hung
    assert first.exitcode == -signal.SIGKILL
    while second.silent_seconds < START_SECONDS:
        simulation.poll(POLL_SECONDS)
    assert not second.hung
    simulation.poll(2 * POLL_SECONDS)
    assert second.hung
    assert (simulation.restarts("hung"), simulation.restarts("died")) == (2, 0)


def test_worker_that_dies_repeatedly_is_replaced_with_growing_delays_and_a_stable_one_at_once(
    simulation: Simulation,
) -> None:
    simulation.serve(simulation.second)
    delays = []
    for _ in range(8):
        worker, died = simulation.first, simulation.now
        worker.process.end(9)
        while simulation.first is worker:
            simulation.poll(POLL_SECONDS, simulation.second)
        delays.append(simulation.now - died - POLL_SECONDS)
    assert delays == [1, 2, 4, 8, 16, 32, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]
    for _ in range(2):
        worker = simulation.first
        simulation.serve(worker)
        simulation.poll(STABLE_SECONDS, worker, simulation.second)
        worker.process.end(9)
        simulation.poll(POLL_SECONDS, simulation.second)
        assert simulation.first is not worker
    assert simulation.restarts("died") == 10


def test_supervisor_gives_up_when_all_starts_failed_but_not_while_a_worker_serves(simulation: Simulation) -> None:
    simulation.serve(simulation.second)
    for _ in range(3 * MAX_FAILED_STARTS):
        simulation.first.process.end(9)
        simulation.poll(MAX_DELAY_SECONDS + 1, simulation.second)
    assert not simulation.supervisor.should_exit.is_set()
    simulation.second.process.end(9)
    starts = 0
    while not simulation.supervisor.should_exit.is_set():
        simulation.poll(POLL_SECONDS)
        for worker in simulation.supervisor.processes:
            if worker.process.is_alive():
                worker.process.end(-signal.SIGBUS)
                starts += 1
    assert starts == 2 * MAX_FAILED_STARTS
    assert simulation.supervisor.failure == (
        f"no worker process can serve: the last {starts} starts failed, the last by signal 7 (SIGBUS)"
    )


def test_worker_that_dies_at_the_start_does_not_delay_the_others(simulation: Simulation) -> None:
    simulation.first.process.end(9)
    simulation.serve(simulation.second)
    assert simulation.link(simulation.second).all_ready
    assert simulation.restarts("died") == 1


# Processes

CRASHING_WORKER = """
import os, sys
if "spawn_main" in " ".join(sys.orig_argv) and os.path.exists({marker!r}):
    os._exit(9)
"""
IMPATIENT_SERVICE = """
# Serve, but replace workers sooner, and kill workers sooner that do not stop.
import sys
from service.server import supervisor
supervisor.FIRST_DELAY_SECONDS = supervisor.MAX_DELAY_SECONDS = supervisor.KILL_MARGIN_SECONDS = 0.1
from pipelines.cli.main import main
sys.exit(main())
"""
impatient_service = partial(started_service, python=("-c", IMPATIENT_SERVICE), workers=2, threads=1)


@pytest.fixture
def crash_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; while it exists, each new worker process exits with code 9 before it imports anything."""
    marker = tmp_path / "crash"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASHING_WORKER.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return marker


def rejects_connections(port: int) -> bool:
    """Whether a port rejects connections at once; a connection that waits in a queue fails the test."""
    try:
        with socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS):
            return False
    except ConnectionRefusedError:
        return True


def both_workers(service: ServiceProcess) -> set[int]:
    service.wait_until(lambda: len(service.worker_pids()) == 2)
    return service.worker_pids()


def logged(service: ServiceProcess, text: str, count: int = 1) -> bool:
    return service.output().count(text) >= count


def restarts(service: ServiceProcess, reason: str) -> float:
    return service.metrics().get(f"ranker_worker_restarts_total,reason={reason}", -1)


@pytest.mark.system
def test_hung_worker_is_replaced_and_its_clients_are_disconnected(
    repository: Path, request_body: dict[str, Any]
) -> None:
    """Protects clients against a worker that hangs, which takes its timeout."""
    with running_service(repository, workers=2, threads=1, worker_timeout_seconds=5) as service:
        pids = both_workers(service)
        hung, healthy = sorted(pids)
        assert (restarts(service, "hung"), restarts(service, "died")) == (0, 0)
        clients = BackgroundLoad(service.port, request_body, headers={"Connection": "close"})
        with clients.running():
            clients.wait_for(50)
            os.kill(healthy, signal.SIGSTOP)
            idle = service.connect()  # accepted by the only worker that runs
            assert service.get("/v2/health/live")
            os.kill(hung, signal.SIGSTOP)
            os.kill(healthy, signal.SIGCONT)
            assert read_until_closed(idle) == b""
            service.wait_until(lambda: hung not in service.worker_pids() and len(service.worker_pids()) == 2)
            service.wait_until(lambda: logged(service, "serving feed version 1", 3))
            disconnected = clients.statuses[NO_RESPONSE]
            clients.wait_for(50)
        assert clients.statuses.keys() <= {200, NO_RESPONSE}
        assert clients.statuses[NO_RESPONSE] == disconnected <= 4  # at most those that the hung worker had accepted
        service.wait_until(lambda: (restarts(service, "hung"), restarts(service, "died")) == (1, 0))
        assert healthy in service.worker_pids()
        output = service.output()
    assert f"process {hung} has not responded for " in output
    assert f"process {hung} died (exit code -9) and is replaced" in output


@pytest.mark.system
def test_killed_workers_are_replaced_and_the_port_rejects_connections_meanwhile(
    repository: Path, request_body: dict[str, Any]
) -> None:
    """Protects clients against connections that wait for a worker that is gone; waits for two replacements."""
    with running_service(repository, workers=2, threads=1) as service:
        for delay in (1, 2):
            for pid in both_workers(service):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: rejects_connections(service.port), service.output)
            assert send_request(f"{service.url}/v2/health/ready").status == NO_RESPONSE
            wait_until(partial(logged, service, f"is replaced in {delay} s"), service.output)
            service.wait_until_ready()
            assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        service.wait_until(lambda: restarts(service, "died") == 4)
        assert service.output().count("no process accepts connections") == 2
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.system
def test_service_whose_workers_cannot_start_gives_up_with_the_reason(repository: Path, crash_marker: Path) -> None:
    crash_marker.touch()
    with impatient_service(repository) as service:
        service.wait_until(lambda: logged(service, "is replaced in 0.1 s"))
        assert rejects_connections(service.port)
        assert service.process.wait(TIMEOUT_SECONDS) == 1
        output = service.output()
    assert output.count("died (exit code 9) and is replaced in ") == 9
    assert output.splitlines()[-1] == (
        "ranker: no worker process can serve: the last 10 starts failed, the last with exit code 9"
    )
    assert "Traceback" not in output


@pytest.mark.system
def test_service_does_not_give_up_while_one_worker_serves(
    repository: Path, request_body: dict[str, Any], crash_marker: Path
) -> None:
    """Protects the service against an end because of one worker; starts five processes."""
    with impatient_service(repository) as service:
        service.wait_until_ready()
        pids = both_workers(service)
        crash_marker.touch()
        killed = min(pids)
        os.kill(killed, signal.SIGKILL)
        service.wait_until(lambda: logged(service, "is replaced in 0.1 s", 3))
        assert service.ready()
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        crash_marker.unlink()
        assert killed not in both_workers(service)
        service.wait_until(lambda: logged(service, "serving feed version 1", 3))
        assert service.ready()


@pytest.mark.system
def test_service_whose_workers_die_beside_a_damaged_repository_is_live_until_it_is_repaired(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    """Protects the restart of all workers while no model can be loaded; starts each of them twice."""
    path = shutil.copytree(repository, tmp_path / "repository")
    manifest = path / "feed" / "1" / "manifest.json"
    content = manifest.read_bytes()
    with impatient_service(path, poll_seconds=0.1) as service:
        service.wait_until_ready()
        pids = both_workers(service)
        manifest.write_text("{}")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        service.wait_until(lambda: logged(service, "not ready until a model can be loaded: ", 2))
        assert send_request(f"{service.url}/v2/health/live").status == 200
        assert send_request(f"{service.url}/v2/health/ready").status == 503
        assert not pids & both_workers(service)
        manifest.write_bytes(content)
        service.wait_until_ready()
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]


@pytest.mark.system
def test_supervisor_with_hung_workers_stops_within_its_periods(repository: Path) -> None:
    with impatient_service(repository, worker_timeout_seconds=600, grace_seconds=1) as service:
        service.wait_until_ready()
        for pid in both_workers(service):
            os.kill(pid, signal.SIGSTOP)
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0
        with suppress(FileNotFoundError):
            assert not service.worker_pids()
