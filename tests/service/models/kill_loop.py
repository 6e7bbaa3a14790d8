"""Program of test_killed_processes: forks processes that publish or swap versions, and kills each at a random moment.

Each new process first verifies what the previous one left. The last line of the output lists the current versions.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from pathlib import Path

import torch

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import checksums, repository
from service.models import loader
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.support.file_changes import call_before_changes
from tests.support.waiting import TIMEOUT_SECONDS

loader.warm_up = lambda *_: None  # type: ignore[assignment]

SOURCE, REPOSITORY, KILLS, OPERATION = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def load_repository() -> tuple[Reconciler, int]:
    """Verify all versions and load the repository; return the reconciler and the current version."""
    for version in repository.list_versions(REPOSITORY, "feed"):
        checksums.verify_files(repository.bundle_folder(REPOSITORY, "feed", version))
    models = ModelRegistry(None)
    reconciler = Reconciler(Settings(repository=REPOSITORY, threads=1), models, Metrics())
    reconciler.load_initial()
    assert reconciler.rejected.reasons("feed") == {}
    current = repository.read_release(REPOSITORY, "feed").version
    assert models.get("feed").current.version == str(current)
    return reconciler, current


def run_once(reconciler: Reconciler) -> None:
    if OPERATION == "publish":
        publish(SOURCE, REPOSITORY, keep=2)
        return
    current = repository.read_release(REPOSITORY, "feed").version
    canary = {"version": current, "weight": 0.5}
    change_release(REPOSITORY, "feed", {"version": 3 - current, "canary": canary})
    reconciler.poll()


def run_until_killed(pipe: int) -> None:
    """Load the repository, report the current version and the end of one operation, and repeat the operation.

    Each change of a file of the repository is reported by a dot before it begins.
    """
    reconciler, current = load_repository()
    os.write(pipe, f"{current}\n".encode())
    call_before_changes(REPOSITORY, lambda: os.write(pipe, b"."))
    run_once(reconciler)
    os.write(pipe, b"\n")
    while True:
        run_once(reconciler)


def read(pipe: int) -> bytes:
    """Read one byte of the reports."""
    assert select.select([pipe], [], [], TIMEOUT_SECONDS)[0], "the process does nothing"
    byte = os.read(pipe, 1)
    assert byte, "the repository that the killed process left cannot be served"
    return byte


def run_and_kill(draw: random.Random) -> int:
    """Fork a process, and kill it before a random change of a file; return the version that it loaded."""
    read_end, write_end = os.pipe()
    pid = os.fork()  # this process has no threads: it loads no model itself
    if not pid:
        try:
            run_until_killed(write_end)
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(1)
    os.close(write_end)
    current, dots = (b"".join(iter(lambda: read(read_end), b"\n")) for _ in range(2))
    for _ in range(draw.randint(0, 2 * len(dots))):
        read(read_end)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read_end)
    return int(current)


def main() -> None:
    torch.set_num_threads(1)
    draw = random.Random(7)
    print(json.dumps([run_and_kill(draw) for _ in range(KILLS + 1)]))


if __name__ == "__main__":
    main()
