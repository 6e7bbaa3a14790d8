"""The commands for backup and restore in docs/operations.md work as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli.main import main

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "tests" / "fixtures" / "version_0_1" / "bundle"


def backup_commands() -> str:
    """The code block of the section about backup and restore."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.split("### Back up and restore\n")[1].split("\n### ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(commands)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a repository of two versions and the ``ranker`` command in ``bin``."""
    for _ in range(2):
        assert main(["publish", str(BUNDLE), str(tmp_path / "repository")]) == 0
    command = tmp_path / "bin" / "ranker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pipelines.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run_commands(folder: Path, commands: str) -> str:
    """Run commands with bash in a folder and return their output."""
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["bash", "-euo", "pipefail", "-c", commands]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_backup_restores_all_versions_and_the_release(folder: Path) -> None:
    (folder / "repository" / "feed" / ".work-1").mkdir()
    output = run_commands(folder, backup_commands())
    assert "damaged" not in output
    restored = folder / "restored" / "feed"
    names = {path.name for path in restored.iterdir()}
    assert names >= {"1", "2", "current.json"}
    assert not [name for name in names if name.startswith(".work-")]
    assert json.loads((restored / "current.json").read_text())["version"] == 2


@pytest.mark.nightly(short="test_backup_restores_all_versions_and_the_release")
def test_backup_without_current_file_is_released_again_and_damage_is_reported(folder: Path) -> None:
    (folder / "repository" / "feed" / "current.json").unlink()
    (folder / "repository" / "feed" / "1" / "manifest.json").write_text("{}")
    commands = re.sub(r"^ranker release restored feed +#.*\n", "", backup_commands(), flags=re.MULTILINE)
    assert "damaged: restored/feed/1/SHA256SUMS" in run_commands(folder, commands)
    assert json.loads((folder / "restored" / "feed" / "current.json").read_text())["version"] == 2


def test_documented_command_shows_the_format_of_each_bundle(folder: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (command,) = re.findall(r"^(grep -o .*manifest\.json) +#", page, re.MULTILINE)
    lines = run_commands(folder, command).splitlines()
    assert lines == [f'repository/feed/{version}/manifest.json:"format": 2' for version in (1, 2)]
