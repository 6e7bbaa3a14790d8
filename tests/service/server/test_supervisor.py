"""The supervisor of worker processes: hung workers, workers that die, and workers that cannot start."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from prometheus_client import values
from uvicorn.supervisors import multiprocess

from pipelines.bench.server_process import STARTED
from service.server import supervisor as supervisors
from service.server.graceful import GracefulServer
from service.server.supervisor import HANG_SECONDS, MAX_FAILED_STARTS, POLL_SECONDS, START_SECONDS, Supervisor, Worker
from service.settings import Settings
from tests.support.background_load import BackgroundLoad
from tests.support.http_client import NO_RESPONSE, post_json, read_until_closed, send_request
from tests.support.processes import ServiceProcess, cli_after, running_service, started_service
from tests.support.waiting import TIMEOUT_SECONDS


class SimulatedProcess:
    """A worker process that the test ends."""

    pids = itertools.count(1)

    def __init__(self, *_: object) -> None:
        self.pid, self.exitcode = next(self.pids), None

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        assert self.exitcode is not None

    def end(self, code: int) -> None:
        if self.exitcode is None:
            self.exitcode = code  # type: ignore[assignment]

    def kill(self) -> None:
        self.end(-signal.SIGKILL)


class Simulation:
    """A supervisor of two workers whose processes are simulated.

    Attributes:
        supervisor: the supervisor; its workers have been started.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(multiprocess, "get_subprocess", SimulatedProcess)
        monkeypatch.setattr(multiprocess.signal, "signal", lambda *_: None)
        monkeypatch.setattr(values, "ValueClass", values.MutexValue)
        monkeypatch.setattr(supervisors, "RESTART_SECONDS", -1.0)
        settings = Settings(repository=folder, workers=2)
        self.supervisor = Supervisor(uvicorn.Config("unused", workers=2), [], settings, folder)
        self.supervisor.init_processes()

    @property
    def first(self) -> Any:
        return self.supervisor.processes[0]

    @property
    def second(self) -> Any:
        return self.supervisor.processes[1]

    def poll(self, seconds: float, *answering: Worker, serves: bool = True) -> None:
        """Poll until this time has passed; these workers answer meanwhile."""
        for _ in range(round(seconds / POLL_SECONDS)):
            for worker in answering:
                if worker.child_conn.poll():
                    worker.child_conn.recv()
                    worker.child_conn.send(serves)
            self.supervisor.keep_subprocess_alive()

    def restarts(self, reason: str) -> float:
        return self.supervisor._restarts.labels(reason)._value.get()


@pytest.fixture
def simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    return Simulation(tmp_path, monkeypatch)


def test_worker_is_hung_after_the_timeout_and_before_its_first_answer_after_the_start_timeout(
    simulation: Simulation,
) -> None:
    first, second = simulation.first, simulation.second
    simulation.poll(2 * POLL_SECONDS, first)
    assert (first.serves, second.serves) == (True, False)
    simulation.poll(HANG_SECONDS)
    assert not first.hung
    simulation.poll(2 * POLL_SECONDS)
    assert first.exitcode == -signal.SIGKILL
    simulation.poll(POLL_SECONDS)
    assert simulation.first.process.is_alive()
    assert (simulation.restarts("hung"), simulation.restarts("died")) == (1, 0)
    simulation.poll(START_SECONDS - HANG_SECONDS - 4 * POLL_SECONDS)
    assert not second.hung
    simulation.poll(4 * POLL_SECONDS)
    assert second.hung


def test_hung_worker_that_does_not_end_is_killed_once_and_delays_nothing(simulation: Simulation) -> None:
    worker = simulation.first
    simulation.poll(2 * POLL_SECONDS, worker)
    worker.process.kill = lambda: None  # as in an uninterruptible wait
    simulation.poll(2 * HANG_SECONDS, simulation.second)
    assert (worker.hung, simulation.first) == (True, worker)
    assert (simulation.restarts("hung"), simulation.second.serves) == (0, True)
    worker.process.end(-signal.SIGKILL)
    simulation.poll(POLL_SECONDS)
    assert (simulation.restarts("hung"), simulation.first is worker) == (1, False)


def test_worker_that_answers_late_is_not_hung(simulation: Simulation) -> None:
    worker = simulation.first
    for _ in range(3):
        simulation.poll(HANG_SECONDS)
        simulation.poll(2 * POLL_SECONDS, worker)
    assert (simulation.first, worker.hung) == (worker, False)


def test_worker_that_dies_is_replaced_at_the_next_poll(simulation: Simulation) -> None:
    worker = simulation.first
    simulation.poll(2 * POLL_SECONDS, worker, simulation.second)
    worker.process.end(0)
    simulation.poll(POLL_SECONDS)
    assert simulation.first.process.is_alive()
    assert simulation.first._beside_others
    assert (simulation.restarts("hung"), simulation.restarts("died")) == (0, 1)


def test_worker_that_dies_before_it_serves_is_replaced_later(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "RESTART_SECONDS", 600.0)
    worker = simulation.first
    worker.process.end(9)
    simulation.poll(3 * POLL_SECONDS)
    assert (simulation.first, simulation.restarts("died")) == (worker, 1)
    monkeypatch.setattr(supervisors, "RESTART_SECONDS", -1.0)
    simulation.poll(POLL_SECONDS)
    assert simulation.first.process.is_alive()
    assert not simulation.first._beside_others
    assert simulation.restarts("died") == 1


def test_process_that_cannot_be_started_is_tried_again(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    simulation.first.process.end(9)
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedProcess, "start", fail)
        simulation.poll(2 * POLL_SECONDS, simulation.second)
    assert simulation.second.serves
    simulation.poll(POLL_SECONDS)
    assert simulation.first.process.is_alive()
    assert caplog.messages.count("no process can be started (Resource temporarily unavailable): trying again") == 2
    assert simulation.restarts("died") == 1


def test_workers_are_killed_after_an_error_of_the_supervisor(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = simulation.supervisor.processes
    monkeypatch.setattr(simulation.supervisor, "init_processes", lambda: None)
    monkeypatch.setattr(simulation.supervisor, "handle_signals", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simulation.supervisor.run()
    assert not any(worker.process.is_alive() for worker in workers)


def test_supervisor_gives_up_after_failed_starts_but_not_while_a_worker_serves(simulation: Simulation) -> None:
    serving = simulation.second
    simulation.poll(2 * POLL_SECONDS, serving)
    for _ in range(3 * MAX_FAILED_STARTS):
        simulation.first.process.end(9)
        simulation.poll(POLL_SECONDS, serving)
    assert not simulation.supervisor.should_exit.is_set()
    serving.process.end(9)
    simulation.poll(POLL_SECONDS)
    starts = 0
    while not simulation.supervisor.should_exit.is_set():
        simulation.first.process.end(-signal.SIGBUS)
        simulation.poll(POLL_SECONDS)
        starts += 1
    assert starts == 2 * MAX_FAILED_STARTS
    assert simulation.supervisor.failure == (
        f"no worker process can serve: {starts} ended before they could, the last with signal 7, SIGBUS"
    )


def test_signals_other_than_those_to_stop_do_not_kill_workers(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, *range(1, 12)])
    monkeypatch.setattr(supervisors.time, "sleep", lambda _: next(clock) < 10 or stop())
    workers = list(simulation.supervisor.processes)

    def stop() -> None:
        for worker in workers:
            worker.process.end(0)  # type: ignore[attr-defined]

    simulation.supervisor.signal_queue += [signal.SIGWINCH, signal.SIGHUP]
    simulation.supervisor.join_all()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_worker_answers_only_while_its_event_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Simulation(tmp_path, monkeypatch).first
    server = worker._server = GracefulServer(uvicorn.Config("unused"), 0.0, HANG_SECONDS)
    threading.Thread(target=worker.always_pong, daemon=True).start()

    def answer(seconds: float) -> object:
        return worker.parent_conn.recv() if worker.parent_conn.poll(seconds) else "silence"

    worker.check()
    assert answer(TIMEOUT_SECONDS) is False  # while it starts
    server.started = True
    worker.parent_conn.send(b"ping")
    assert answer(0.2) == "silence"
    asyncio.run(server.on_tick(1))
    assert answer(TIMEOUT_SECONDS) is True
    server.should_exit = True  # as at the end of the process, when it finishes its requests
    worker.parent_conn.send(b"ping")
    assert answer(TIMEOUT_SECONDS) is False


# Processes

CRASHING_WORKER = """
import os, sys
if "spawn_main" in " ".join(sys.orig_argv) and os.path.exists({marker!r}):
    os._exit(9)
"""
IMPATIENT = cli_after("""
from service import settings
from service.server import supervisor
settings.KILL_MARGIN_SECONDS = supervisor.KILL_MARGIN_SECONDS = supervisor.RESTART_SECONDS = 0.1
""")
"""A service that replaces workers sooner, and kills workers sooner that do not stop."""
impatient_service = partial(started_service, python=IMPATIENT, workers=2, threads=1)


@pytest.fixture
def crash_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; while it exists, each new worker process exits with code 9 before it imports anything."""
    marker = tmp_path / "crash"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASHING_WORKER.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return marker


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
    with running_service(repository, workers=2, threads=1) as service:
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
    assert f"process {hung} died (signal 9, SIGKILL) and is replaced" in output


@pytest.mark.system
def test_clients_of_killed_workers_wait_for_the_new_ones(repository: Path, request_body: dict[str, Any]) -> None:
    with impatient_service(repository) as service:
        service.wait_until_ready()
        for pid in both_workers(service):
            os.kill(pid, signal.SIGKILL)
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        service.wait_until(lambda: restarts(service, "died") == 2)
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.nightly(short="test_supervisor_gives_up_after_failed_starts_but_not_while_a_worker_serves")
@pytest.mark.system
def test_service_does_not_give_up_while_one_worker_serves(
    repository: Path, request_body: dict[str, Any], crash_marker: Path
) -> None:
    """Protects the service against an end because of one worker; starts more processes than it may fail to start."""
    with impatient_service(repository) as service:
        service.wait_until_ready()
        crash_marker.touch()
        os.kill(min(both_workers(service)), signal.SIGKILL)
        service.wait_until(lambda: logged(service, "is replaced", 2 * MAX_FAILED_STARTS + 2))
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        crash_marker.unlink()
        service.wait_until(lambda: logged(service, STARTED, 3))


@pytest.mark.system
def test_service_whose_workers_cannot_start_gives_up_with_the_reason(repository: Path, crash_marker: Path) -> None:
    crash_marker.touch()
    with impatient_service(repository) as service:
        assert service.process.wait(TIMEOUT_SECONDS) == 1
        output = service.output()
    starts = 2 * MAX_FAILED_STARTS
    assert output.count("died (exit code 9) and is replaced") == starts
    assert output.splitlines()[-1] == (
        f"ranker: no worker process can serve: {starts} ended before they could, the last with exit code 9"
    )
    assert "Traceback" not in output


@pytest.mark.system
def test_service_whose_workers_die_beside_a_damaged_repository_serves_with_the_last_and_recovers(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    """Protects the restart of workers while no model can be loaded; starts each of them twice."""
    path = shutil.copytree(repository, tmp_path / "repository")
    manifest = path / "feed" / "1" / "manifest.json"
    content = manifest.read_bytes()
    with impatient_service(path, poll_seconds=0.1) as service:
        service.wait_until_ready()
        first, second = both_workers(service)
        service.wait_until(lambda: logged(service, f"process {second} serves"))
        manifest.write_text("{}")
        os.kill(first, signal.SIGKILL)
        service.wait_until(lambda: logged(service, "not ready until a model can be loaded: "))
        for _ in range(20):
            assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        os.kill(second, signal.SIGKILL)
        service.wait_until(lambda: logged(service, STARTED, 3))
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        assert send_request(f"{service.url}/v2/health/ready").status == 503
        replaced = both_workers(service)
        manifest.write_bytes(content)
        service.wait_until(lambda: logged(service, STARTED, 4) and all(service.ready() for _ in range(20)))
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        assert both_workers(service) == replaced
        assert not {first, second} & replaced
        service.wait_until(lambda: restarts(service, "died") == 2)


@pytest.mark.system
def test_supervisor_with_hung_workers_stops_within_its_periods(repository: Path) -> None:
    with impatient_service(repository, grace_seconds=1) as service:
        service.wait_until_ready()
        pids = both_workers(service)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
