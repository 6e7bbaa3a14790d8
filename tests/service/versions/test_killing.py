"""kill -9 at random moments of publishing and of swapping: the repository stays readable and serves a whole version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 30
"""Of each kind."""

PROGRAM = """
# Forks processes that publish or swap without end, kills each at a random moment, and looks at what is left.
import json, os, random, signal, sys, time
from pathlib import Path

import torch
torch.set_num_threads(1)
from pipelines.publishing import publish
from pipelines.releasing import change
from ranking import bundle, repository
from service.metrics import Metrics
from service.settings import Settings
from service.versions.models import Models
from service.versions.reconciling import Reconciler

source, repo, kills, kind = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def reconciler():
    models = Models(None)
    return models, Reconciler(Settings(repository=repo, threads=1), models, Metrics())

def once(looking):
    if kind == "publish":
        publish(source, repo, keep=2)
    else:
        current = repository.release(repo, "feed").version
        change(repo, "feed", {"version": 3 - current, "canary": {"version": current, "weight": 0.5}})
        looking.look()

def work(tell):
    looking = reconciler()[1]
    if kind == "swap":
        looking.first()
    os.write(tell, b"!")
    while True:
        once(looking)

def check(tell):
    for version in repository.versions(repo, "feed"):
        bundle.verify_files(repository.folder(repo, "feed", version))
    models, looking = reconciler()
    looking.first()
    assert not looking.refused, looking.refused
    current = repository.release(repo, "feed").version
    assert models.find("feed").current.version == str(current)
    os.write(tell, f"{current}\\n".encode())

def child(job):
    hear, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            job(tell)
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    os.close(tell)
    return pid, hear

looking = reconciler()[1]
looking.first()  # whatever is slow the first time is done: children begin where it matters
once(looking)
began = time.monotonic()
once(looking)
longest = 3 * (time.monotonic() - began)
draw = random.Random(7)
found = []
for number in range(kills):
    pid, hear = child(work)
    assert os.read(hear, 1) == b"!", "it did not start"
    time.sleep(draw.uniform(0, longest))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(hear)
    pid, hear = child(check)
    said = os.read(hear, 20)
    os.close(hear)
    assert os.waitpid(pid, 0)[1] == 0, f"after kill {number}"
    found.append(int(said))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["publish", "swap"])
def test_a_killed_process_leaves_a_repository_that_serves_a_whole_version(kind: str, repo: Path, bundle: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(bundle), str(repo), str(KILLS), kind]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    current = json.loads(ended.stdout.splitlines()[-1])
    assert len(set(current)) > 1, "nothing was done before a kill"
    if kind == "publish":
        assert current == sorted(current)
        work = [folder for folder in (repo / "feed").iterdir() if folder.name.startswith(".work-")]
        assert len(work) <= 1  # of the last that was killed
