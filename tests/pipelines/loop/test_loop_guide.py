"""The commands of docs/loop.md work as written, and print what it quotes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ranking.artifacts import bundle
from tests.support.command import ranker
from tests.support.ports import free_port
from tests.support.processes import started_service

GUIDE = Path(__file__).parents[3] / "docs" / "loop.md"
BLOCK = re.compile(r"^```(bash|python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNTIL = re.compile(r"^until \S+Z: ", re.MULTILINE)
"""The time of the run."""
SMALL = ["training.epochs=1", "evaluation.bootstrap=0", "evaluation.baselines=[]", "model.experts=4"]
"""Overrides added to each training, whose metrics the guide does not quote."""


def counters_of(version: Path) -> dict[str, float]:
    """Return the number of impressions in each counter of a version."""
    counter_features = bundle.load(version).counter_features
    assert counter_features is not None
    return {name: float(state.base["count"].sum()) for name, state in counter_features.counters.items()}


def exported(line: str) -> dict[str, str]:
    """Return the variables that a line of shell exports."""
    names = re.findall(r"(\w+)=", line)
    printed = subprocess.run(["bash", "-c", f"{line}; printenv {' '.join(names)}"], check=True, stdout=subprocess.PIPE)
    return dict(zip(names, printed.stdout.decode().splitlines(), strict=True))


def test_commands_of_the_guide_print_the_quoted_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the example that users follow; everything but the service runs in this process."""
    blocks = BLOCK.findall(GUIDE.read_text().partition("## Example\n")[2].partition("\n## ")[0])
    port, printed = str(free_port()), ""
    (program,) = (text for kind, text in blocks if kind == "python")
    commands = "".join(text for kind, text in blocks if kind == "bash").replace("\\\n", " ")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for line in commands.replace("8000", port).splitlines():
            match shlex.split(line):
                case ["export", *_]:
                    for name, value in exported(line).items():
                        monkeypatch.setenv(name, value)
                case ["ranker", "serve", repository, *options, "&"]:
                    service = stack.enter_context(started_service(Path(repository), options))
                case ["python", "application.py"]:
                    exec(program.replace("8000", port), {})
                case ["kill", *_]:
                    service.process.terminate()
                    service.process.wait()
                case ["ranker", *arguments]:
                    if arguments[0] == "train":
                        arguments += [word for setting in SMALL for word in ("--set", setting)]
                    code, out, err = ranker(*map(os.path.expandvars, arguments))
                    assert code == 0, err
                    printed += out
                case words:
                    pytest.fail(f"the guide has another command: {words}")
    first, second = (counters_of(Path("repository") / "feed" / version) for version in ("1", "2"))
    rows = len(pq.read_table("joined", partitioning=None))
    assert rows == 6_000
    for name, counted in first.items():
        assert second[name] == counted + rows, "training counts the history and what was served"
    for quoted in (text for kind, text in blocks if not kind):
        assert UNTIL.sub("", quoted) in UNTIL.sub("", printed)
