"""The connection between a worker and its supervisor."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest

from service.server.worker import START_SECONDS, Worker
from service.server.worker_link import WorkerLink, WorkerState
from service.settings import KILL_MARGIN_SECONDS


class RunningProcess:
    """Stands for the process of a worker."""

    pid = 7

    def is_alive(self) -> bool:
        return True


def connected(*, all_ready: bool = False) -> tuple[Any, WorkerLink]:
    """The supervisor's view of a worker, and the link in that worker."""
    worker = Worker.__new__(Worker)
    worker.parent_conn, worker.child_conn = multiprocessing.Pipe()
    worker.process = RunningProcess()  # type: ignore[assignment]
    worker.state, worker.served_since, worker.silent_seconds, worker.listens = None, None, 0.0, False
    return worker, WorkerLink(worker.child_conn, all_ready=all_ready)


def test_worker_state_is_the_last_report() -> None:
    worker, link = connected()
    worker.poll(0.5)
    assert (worker.state, worker.serves, worker.silent_seconds) == (None, False, 0.5)
    link.report_starting()
    worker.poll(0.5)
    assert (worker.state, worker.serves, worker.silent_seconds) == (WorkerState.STARTING, False, 0.0)
    link.report_waiting()
    assert not link.may_listen
    worker.poll(0.5)
    assert worker.state is WorkerState.WAITING
    worker.allow_listening()
    assert (worker.listens, link.may_listen, link.all_ready) == (True, True, False)
    link.report_serving(ends=False)
    worker.poll(0.5)
    assert (worker.serves, worker.served_since) == (False, None)
    link.mark_ready()
    link.report_serving(ends=False)
    worker.poll(0.5)
    link.report_starting()  # a late report of the thread that reports until the event loop runs
    worker.poll(0.5)
    assert worker.serves
    assert worker.served_since <= time.monotonic()
    worker.poll(0.5)
    worker.poll(0.5)
    assert (worker.serves, worker.silent_seconds) == (True, 1.0)
    link.report_serving(ends=True)
    worker.poll(0.5)
    assert (worker.state, worker.serves, worker.silent_seconds) == (WorkerState.ENDING, False, 0.0)
    assert not worker.listens


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (None, START_SECONDS),
        (WorkerState.STARTING, 10),
        (WorkerState.SERVING, 10),
        (WorkerState.ENDING, 10 + 25 + KILL_MARGIN_SECONDS),
    ],
)
def test_silence_limit_is_longer_before_the_first_report_and_while_requests_are_finished(
    state: Any, limit: float
) -> None:
    worker, _ = connected()
    worker.state = state
    assert worker.silence_limit(10, 25) == limit


def test_link_reports_without_a_reader_do_not_wait() -> None:
    worker, link = connected()
    for _ in range(1_000_000 // 4):
        link.report_starting()
    worker.parent_conn.close()
    link.report_starting()
    assert not link.all_ready


def test_link_all_ready_is_true_after_the_announcement() -> None:
    worker, link = connected()
    assert not link.all_ready
    worker.allow_listening()
    worker.announce_all_ready()
    assert link.all_ready
    assert link.may_listen
    assert connected(all_ready=True)[1].all_ready
