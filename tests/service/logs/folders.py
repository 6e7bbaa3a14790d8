"""Folders of logs as the service opens them."""

from __future__ import annotations

from pathlib import Path

from ranking.artifacts.log_names import FEEDBACK, SERVED
from service.logs.log_folder import LogFolder
from service.logs.rotating_files import size_of_lines


def feedback_folder(path: Path) -> LogFolder:
    return LogFolder(path, FEEDBACK, "feedback", recover=size_of_lines)


def served_folder(path: Path, days: float = 1.0) -> LogFolder:
    return LogFolder(path, SERVED, "served log", days=days)
