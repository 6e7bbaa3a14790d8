"""Section on how to reproduce the run: command, versions and settings."""

from __future__ import annotations

import shlex

from pipelines.report.run_data import RunData
from pipelines.report.section import Section


def reproduce(run_data: RunData) -> Section:
    """Build the section from ``command.json`` and ``config.toml``."""
    command = run_data.command
    return Section(
        "reproduce",
        "Reproduce",
        "",
        {
            "command": _shell_command(command["argv"]) if command and command["argv"] else None,
            "recorded": command is not None,
            "versions": command["versions"] if command else {},
            "environment": command["environment"] if command else {},
            "system": command["system"] if command else None,
            "threads": command["threads"] if command else None,
            "seed": run_data.config.training.seed,
            "config": run_data.config_text,
        },
    )


def _shell_command(argv: list[str]) -> str:
    """Quote a command for the shell, with one option per line."""
    return " ".join(f"\\\n  {shlex.quote(part)}" if part.startswith("--") else shlex.quote(part) for part in argv)
