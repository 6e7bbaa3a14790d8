"""The commands of docs/loop.md work as written, and print what it quotes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port

GUIDE = Path(__file__).parents[3] / "docs" / "loop.md"
BLOCK = re.compile(r"^```(bash|python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNTIL = re.compile(r"^until \S+Z: ", re.MULTILINE)
"""The time of the run."""


@pytest.mark.slow
def test_commands_of_the_guide_print_the_quoted_output(tmp_path: Path) -> None:
    example = GUIDE.read_text().partition("## Example\n")[2].partition("\n## ")[0]
    blocks = BLOCK.findall(example)
    (program,) = (text for kind, text in blocks if kind == "python")
    port = str(free_port())
    (tmp_path / "application.py").write_text(program.replace("8000", port))
    commands = "".join(text for kind, text in blocks if kind == "bash").replace("8000", port)
    commands = commands.replace("wait\n", "wait || true\n")  # the service ends by a signal
    script = f"set -em\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = UNTIL.sub("", done.stdout)
    for quoted in (text for kind, text in blocks if not kind):
        assert UNTIL.sub("", quoted) in printed
