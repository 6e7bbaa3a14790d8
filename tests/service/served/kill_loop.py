"""Program of test_killed_processes: forks processes that log answered requests, and kills each at a random moment.

Each line of the file ``answered-PROCESS`` holds the id of a request and the time at which it was handed to the log. The
output has a line of JSON per process: its number and the time at which it was killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

import ranking
from service.backends.select import select_backend
from service.engine.model import LoadedModel
from service.engine.request_encoder import RequestEncoder
from service.engine.response import prepare, sort_candidates
from service.engine.validation import ParsedRequest
from service.protocol.messages import RankRequest
from service.served.record import ServedRequest
from service.served.writer import ServedLog
from service.settings import Settings
from service.telemetry.metrics import Metrics

REPOSITORY, FOLDER, KILLS, INTERVAL = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
AT_A_TIME = 5
"""Number of processes that write to the folder at the same time."""
MIN_SECONDS, MAX_SECONDS = 0.2, 2.5
"""Range of the lifetime of a process as a multiple of the interval."""
REQUEST_SECONDS = 0.005
"""Seconds between two requests of a process."""


def make_requests() -> list[ServedRequest]:
    """Rank requests of different sizes with random scores."""
    ranker = ranking.load(REPOSITORY / "feed" / "1")
    encoder = RequestEncoder(ranker)
    model = LoadedModel("feed", "1", ranker, encoder, select_backend(ranker, "torch"), 0.0)
    requests = []
    for size in range(1, 30):
        body = {"user": {"id": f"u{size}"}, "items": [{"id": i, "features": {"price": i + 0.5}} for i in range(size)]}
        message = RankRequest.model_validate(body)
        prepared = prepare(ranker, encoder, ParsedRequest.from_message(message, encoder.readable["item"]))
        batch, computed = encoder.encode(prepared.request)
        (missing,) = encoder.missing(batch, prepared.request.counts)
        scores = np.random.default_rng(size).random((size, len(prepared.tasks))).astype(np.float32)
        result = sort_candidates(prepared, scores, missing, computed)
        requests.append(ServedRequest(model, "", None, 0.0, f"u{size}", degraded=False, result=result))
    return requests


def log_requests(process: int, requests: list[ServedRequest]) -> NoReturn:
    """Log requests until the process is killed."""
    settings = Settings(repository=REPOSITORY, served_log=FOLDER / "log", served_log_seconds=INTERVAL)
    log = ServedLog.from_settings(settings, Metrics())
    assert log is not None
    answered = os.open(FOLDER / f"answered-{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while True:
        request_id, now = f"{process}-{number}", time.monotonic()
        log.add(requests[number % len(requests)]._replace(request_id=request_id, arrived=now))
        os.write(answered, f"{request_id} {now}\n".encode())
        number += 1
        time.sleep(REQUEST_SECONDS)


def main() -> None:
    """Start and kill the processes."""
    requests = make_requests()
    running: dict[int, tuple[int, float]] = {}  # process → id and time of the kill
    started = 0
    while started < KILLS or running:
        while started < KILLS and len(running) < AT_A_TIME:
            child = os.fork()
            if not child:
                log_requests(started, requests)
            running[started] = child, time.monotonic() + random.uniform(MIN_SECONDS, MAX_SECONDS) * INTERVAL
            started += 1
        for process, (child, kill_time) in list(running.items()):
            if time.monotonic() >= kill_time:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                print(json.dumps({"process": process, "killed": time.monotonic()}), flush=True)
                del running[process]
        time.sleep(0.002)


if __name__ == "__main__":
    main()
