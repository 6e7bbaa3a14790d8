"""SIGKILL at random moments of publishing and swapping: the repository stays readable and serves a complete version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.system), pytest.param(13, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("operation", ["publish", "swap"])
def test_killed_process_leaves_a_repository_that_serves_a_complete_version(
    operation: str, kills: int, repo: Path, bundle: Path
) -> None:
    """Protects a repository against a kill of the process that changes it; each kill loads all models again."""
    command = [sys.executable, str(Path(__file__).with_name("kill_loop.py")), str(bundle), str(repo), str(kills)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([*command, operation], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    if operation == "publish":
        versions = json.loads(result.stdout.splitlines()[-1])
        assert versions == sorted(set(versions))  # published versions are never lost
        staging_folders = [folder for folder in (repo / "feed").iterdir() if folder.name.startswith(".work-")]
        assert len(staging_folders) <= 1  # that of the process killed last
