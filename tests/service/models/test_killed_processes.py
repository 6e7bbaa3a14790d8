"""kill -9 at random moments of publishing and of swapping: the repository stays readable and serves a whole version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 26
"""Of each kind."""

PROGRAM = """
# Forks processes that publish or swap without end, and kills each at a random moment; the next looks at what it left.
import json, os, random, select, signal, sys, time
from pathlib import Path

import torch
torch.set_num_threads(1)
from pipelines.jobs.publish import publish
from pipelines.jobs.release import change
from ranking.artifacts import checksums
from ranking.artifacts import repository
from service.telemetry.metrics import Metrics
from service.settings import Settings
from service.models.registry import Models
from service.models.reconciler import Reconciler

source, repo, kills, kind = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def serving():
    for version in repository.versions(repo, "feed"):
        checksums.verify_files(repository.folder(repo, "feed", version))
    models = Models(None)
    reconciler = Reconciler(Settings(repository=repo, threads=1), models, Metrics())
    reconciler.first()
    assert not reconciler.refused, reconciler.refused
    current = repository.release(repo, "feed").version
    assert models.find("feed").current.version == str(current)
    return reconciler, current

def once(reconciler):
    if kind == "publish":
        publish(source, repo, keep=2)
    else:
        current = repository.release(repo, "feed").version
        change(repo, "feed", {"version": 3 - current, "canary": {"version": current, "weight": 0.5}})
        reconciler.look()

def child(tell):
    reconciler, current = serving()
    began = time.monotonic()
    once(reconciler)
    os.write(tell, json.dumps([current, time.monotonic() - began]).encode())
    while True:
        once(reconciler)

def fork():
    hear, tell = os.pipe()
    pid = os.fork()  # of a process without threads: it has loaded nothing itself
    if not pid:
        try:
            child(tell)
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(1)
    os.close(tell)
    assert select.select([hear], [], [], 60)[0], "it does nothing"
    said = os.read(hear, 100)
    os.close(hear)
    assert said, "what was left cannot be served"
    return pid, *json.loads(said)

draw = random.Random(7)
found = []
for _ in range(kills + 1):
    pid, current, seconds = fork()
    found.append(current)
    time.sleep(draw.uniform(0, 2 * seconds))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["publish", "swap"])
def test_a_killed_process_leaves_a_repository_that_serves_a_whole_version(kind: str, repo: Path, bundle: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(bundle), str(repo), str(KILLS), kind]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if kind == "publish":
        current = json.loads(ended.stdout.splitlines()[-1])
        assert current == sorted(set(current))  # whatever was published stays
        work = [folder for folder in (repo / "feed").iterdir() if folder.name.startswith(".work-")]
        assert len(work) <= 1  # of the last that was killed
