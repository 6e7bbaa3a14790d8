"""Where the run comes from: command, versions, settings."""

from __future__ import annotations

import shlex

from pipelines.report.run_data import RunData
from pipelines.report.section import Section


def origin(facts: RunData) -> Section:
    """The exact command, versions and settings."""
    command = facts.command
    return Section(
        "origin",
        "Reproduce",
        "",
        {
            "command": _shown(command["argv"]) if command and command["argv"] else None,
            "known": command is not None,
            "versions": command["versions"] if command else {},
            "environment": command["environment"] if command else {},
            "system": command["system"] if command else None,
            "threads": command["threads"] if command else None,
            "seed": facts.config.training.seed,
            "config": facts.config_text,
        },
    )


def _shown(argv: list[str]) -> str:
    """The command as a shell takes it, an option a line."""
    return " ".join(f"\\\n  {shlex.quote(part)}" if part.startswith("--") else shlex.quote(part) for part in argv)
