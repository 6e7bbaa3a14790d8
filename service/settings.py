"""What an operator may set."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveInt


class Settings(BaseModel):
    """Settings of one service process.

    Attributes:
        repository: folder of published bundles; each model's current version is served.
        default_model: answers ``POST /v1/rank``; may be left out if the repository holds one model.
        max_candidates: items of one request; more are refused with 413.
        max_batch_rows: candidates, of one request or many, that are scored at a time; with more each costs hardly less,
            and whoever comes next waits for longer.
        max_body_bytes: size of a request; more is refused with 413.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Path
    default_model: str | None = None
    max_candidates: PositiveInt = 5_000
    max_batch_rows: PositiveInt = 500
    max_body_bytes: PositiveInt = 8 * 1024 * 1024
