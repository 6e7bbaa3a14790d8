"""Tests of the memory and pauses of a measured server."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.serving.measured_server import paused, resident_bytes
from pipelines.bench.server_process import ServerProcess
from tests.support.waiting import wait_until


def test_paused_server_uses_no_cpu_time() -> None:
    program = (
        "import sys, threading, http.server as h; threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start();"
    )
    program += " h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()"
    with ServerProcess([sys.executable, "-c", program, "{port}"], "/", [min(os.sched_getaffinity(0))]) as server:
        with paused(server):
            threads = list(Path(f"/proc/{server.pid}/task").glob("*/stat"))
            wait_until(lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads))
            before = server.cpu_seconds()
            time.sleep(0.3)
            assert server.cpu_seconds() == before
        wait_until(lambda: server.cpu_seconds() > before)
        assert resident_bytes(server) > 2 * 2**20
