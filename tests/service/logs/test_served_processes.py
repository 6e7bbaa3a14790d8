"""The served log of several worker processes: complete after SIGTERM, with the metrics of all of them."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from tests.support.http_client import send_request
from tests.support.processes import running_service
from tests.support.served_files import logged_ids
from tests.support.waiting import TIMEOUT_SECONDS

THREADS, REQUESTS = 4, 25
"""Clients, and requests of each."""


@pytest.mark.system
def test_stopped_service_has_logged_every_answer_of_all_workers(repository: Path, tmp_path: Path) -> None:
    answered: list[str] = []

    def send(url: str, client: int) -> None:
        for number in range(REQUESTS):
            request_id = f"{client}-{number}"
            body = {"request_id": request_id, "user": {"id": f"u{number}"}, "items": [{"id": "v1"}, {"id": "v2"}]}
            if send_request(f"{url}/v1/rank", body).status == 200:
                answered.append(request_id)

    log = tmp_path / "log"
    with running_service(repository, workers=2, threads=1, served_log=log, served_log_seconds=3) as service:
        threads = [threading.Thread(target=send, args=(service.url, client)) for client in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        service.wait_for_metric("ranker_served_requests_total", len(answered))
        send(service.url, THREADS)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_SECONDS) == 0
    assert len(answered) == (THREADS + 1) * REQUESTS
    assert sorted(logged_ids(log)) == sorted(answered)
    assert not list(log.glob("*.part"))
