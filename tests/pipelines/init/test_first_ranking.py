"""The commands of docs/first-ranking.md work as written, and print what it quotes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port

GUIDE = Path(__file__).parents[3] / "docs" / "first-ranking.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"[-+]?\d\.\d{4}|; nor .*")
"""What differs between machines: numbers, and baselines whose interval ends near 0."""


@pytest.mark.nightly(
    short="tests/pipelines/loop/test_loop_guide.py::test_commands_of_the_guide_print_the_quoted_output"
)
def test_commands_of_the_page_print_the_quoted_output(tmp_path: Path) -> None:
    """Downloads a package of two megabytes. LightGBM is hidden, because the page installs it for nothing else."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['lightgbm'] = None\n")
    blocks = BLOCK.findall(GUIDE.read_text())
    script = "set -e\n" + "".join(text for kind, text in blocks if kind == "bash")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script.replace("8000", str(free_port()))],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": f"{tmp_path / 'hidden'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for quoted in (text for kind, text in blocks if not kind):
        assert quoted in done.stdout
    (verdict,) = (text for kind, text in blocks if kind == "text")
    assert VARIES.sub("", verdict) in VARIES.sub("", done.stdout)
    assert done.stdout.count("RMSE") > 1, "both models are compared with the baselines"
    answer, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index('{"request_id"'))
    (quoted,) = (json.loads(text) for kind, text in blocks if kind == "json")
    assert [item["id"] for item in answer["items"]] == [item["id"] for item in quoted["items"]]
    assert answer["counters_as_of"] == quoted["counters_as_of"]
    assert all(item["missing"] == [] for item in answer["items"])
