"""``ranker demo``: the whole loop on generated logs, up to one ranked answer over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.config.config import load_config
from pipelines.console import print_status
from pipelines.datasets.synthetic import generate
from pipelines.evaluation.format import format_evaluation
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from ranking.artifacts.atomic_files import check_creatable
from ranking.errors import LogError, RankerError

ROWS = 100_000
START_SECONDS = 60.0
REQUEST: dict[str, Any] = {
    "request_id": "demo-1",
    "user": {"id": "u7"},
    "context": {"surface": "home", "hour": 9},
    "items": [{"id": f"v{i}"} for i in range(0, 100, 5)],
    "top_n": 5,
    "explain": True,
}


def demo(folder: Path) -> None:
    """Generates logs, trains, freezes, publishes, serves, ranks once, shuts down and says where everything lies.

    Raises:
        RankerError: a step failed; says which and why.
    """
    if folder.exists():
        raise LogError(f"{folder} exists: remove it (rm -r {folder}) or name another folder with --dir")
    check_creatable(folder)
    logs, run, bundle, repository = (folder / name for name in ("logs", "run", "bundle", "repository"))
    print_status(f"1/5 generating {ROWS:,} impressions")
    generate(logs, ROWS)
    print_status("2/5 training")
    train(load_config(logs / "ranker.toml"), run)
    print(format_evaluation(json.loads((run / "evaluation.json").read_text())))
    print_status("3/5 freezing")
    freeze_run(run, bundle)
    print_status("4/5 publishing")
    name, version = publish(bundle, repository)
    print_status("5/5 serving, and ranking 20 candidates for one user")
    with service(repository) as url:
        answer = post(f"{url}/v1/rank", REQUEST)
    print(_ranked(answer))
    print(f"logs and ranker.toml   {logs}")
    print(f"run                    {run}")
    print(f"bundle                 {bundle}")
    print(f"repository             {repository}  (model {name}, version {version}; serve it with: make serve)")


@contextmanager
def service(repository: Path) -> Iterator[str]:
    """A real service process on a free port of this machine; yields its URL once it is ready, stops it at the end.

    Raises:
        RankerError: it did not become ready; shows what it printed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as printed:  # a pipe that nobody reads would fill and stop the service
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    process.wait()
                    printed.seek(0)
                    raise RankerError(f"the service did not start:\n{printed.read()}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Posts JSON and reads JSON.

    Raises:
        RankerError: the answer is an error; shows it.
    """
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise RankerError(f"POST {url}: {error.code} {error.read().decode()}") from None


def _ranked(answer: dict[str, Any]) -> str:
    """The answer as a table, and which experts ran."""
    tasks = list(answer["items"][0]["scores"])
    lines = ["", f"ranked by {answer['model']} version {answer['version']}, best first:"]
    lines.append("  item   score  " + "".join(f"{task:>12}" for task in tasks))
    for item in answer["items"]:
        scores = "".join(f"{item['scores'][task]:>12.4f}" for task in tasks)
        lines.append(f"  {item['id']:<5}{item['score']:>8.3f}  {scores}")
    explained = answer["explain"]
    lines.append(f"experts that ran: {explained['experts_run']} of {explained['experts_total']}")
    for task, experts in explained["tasks"].items():
        lines.append(
            f"  {task:<12}" + " + ".join(f"{weight:.2f} × expert {expert}" for expert, weight in experts.items())
        )
    return "\n".join([*lines, ""])
