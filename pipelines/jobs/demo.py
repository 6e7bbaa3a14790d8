"""``ranker demo``: runs the whole workflow on a generated log, up to one ranked response over HTTP."""

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
from pipelines.report.page import write_report
from ranking.artifacts.atomic_files import check_creatable
from ranking.errors import LogError, RankerError

ROWS = 100_000
"""Number of generated impressions."""
START_TIMEOUT_SECONDS = 60.0
"""Maximum number of seconds until the service is ready."""
REQUEST: dict[str, Any] = {
    "request_id": "demo-1",
    "user": {"id": "u7"},
    "context": {"surface": "home", "hour": 9},
    "items": [{"id": f"v{i}"} for i in range(0, 100, 5)],
    "top_n": 5,
    "explain": True,
}


def demo(folder: Path) -> None:
    """Generate a log, train, freeze, publish, serve and rank once, then print the locations of all results.

    Args:
        folder: new folder for all files.

    Raises:
        RankerError: a step failed.
    """
    if folder.exists():
        raise LogError(f"{folder} exists: remove it (rm -r {folder}) or name another folder with --dir")
    check_creatable(folder)
    logs, run, bundle, repository = (folder / name for name in ("logs", "run", "bundle", "repository"))
    print_status(f"1/5 generating {ROWS:,} impressions")
    generate(logs, ROWS)
    print_status("2/5 training")
    train(load_config(logs / "ranker.toml"), run, baselines=True)
    print(format_evaluation(json.loads((run / "evaluation.json").read_text())))
    print_status("3/5 freezing")
    write_report(run)  # becomes part of the bundle
    freeze_run(run, bundle)
    print_status("4/5 publishing")
    name, version = publish(bundle, repository)
    print_status("5/5 serving, and ranking 20 candidates for one user")
    with service(repository) as url:
        response = post(f"{url}/v1/rank", REQUEST)
    print(_format_response(response))
    print(f"logs and ranker.toml   {logs}")
    print(f"run                    {run}")
    print(f"bundle                 {bundle}")
    print(f"repository             {repository}  (model {name}, version {version}; serve it with: make serve)")


@contextmanager
def service(repository: Path) -> Iterator[str]:
    """Run ``ranker serve`` in a process on a free port; yields its URL when it is ready.

    Raises:
        RankerError: the service did not become ready; includes its output.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as output:  # an unread pipe would fill up and block the service
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            while not _ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    process.wait()
                    output.seek(0)
                    *_, last = output.read().splitlines() or ["it printed nothing"]
                    raise RankerError(f"the service did not start: {last}")
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
    """Send a JSON request and return the JSON response.

    Raises:
        RankerError: the response is an error; includes its status and body.
    """
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            document: dict[str, Any] = json.load(response)
            return document
    except urllib.error.HTTPError as error:
        raise RankerError(f"POST {url}: {error.code} {error.read().decode()}") from None


def _format_response(response: dict[str, Any]) -> str:
    """Return a ranking response as a table, with the experts that ran."""
    tasks = list(response["items"][0]["scores"])
    lines = ["", f"ranked by {response['model']} version {response['version']}, best first:"]
    lines.append("  item   score  " + "".join(f"{task:>12}" for task in tasks))
    for item in response["items"]:
        scores = "".join(f"{item['scores'][task]:>12.4f}" for task in tasks)
        lines.append(f"  {item['id']:<5}{item['score']:>8.3f}  {scores}")
    explanation = response["explain"]
    lines.append(f"experts that ran: {explanation['experts_run']} of {explanation['experts_total']}")
    for task, experts in explanation["tasks"].items():
        weights = " + ".join(f"{weight:.2f} × expert {expert}" for expert, weight in experts.items())
        lines.append(f"  {task:<12}{weights}")
    return "\n".join([*lines, ""])
