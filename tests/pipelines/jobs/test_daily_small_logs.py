"""The daily job with default settings on small logs: every day is published by the default gate."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.config.config import Config
from pipelines.jobs.daily import daily
from tests.support.small_logs import (
    CENSUS_SCHEMA,
    FILM_SCHEMA,
    FIRST_DAY,
    census_log,
    film_log,
    write_days,
)

NEW_DAYS = 4
DAYS = 40


def run_days(
    table: pa.Table, schema: dict[str, Any], first_days: int, new_days: int, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """Train on the first days, then run the job for each new day; return the records."""
    test_from = FIRST_DAY + timedelta(days=first_days - 1)
    logs = {"path": folder / "log", "validation_from": test_from - timedelta(days=1), "test_from": test_from}
    config = Config.model_validate({"name": "small", **schema, "logs": logs, "training": {"seed": seed}})
    write_days(table, folder / "log", 0, first_days - 1)
    records = []
    for day in range(first_days - 1, first_days + new_days):
        write_days(table, folder / "log", day, day + 1)
        date = (FIRST_DAY + timedelta(days=day)).date()
        records.append(daily(config, folder / "runs", folder / "repository", date, margin=0.01))
    return records


@pytest.mark.parametrize(
    ("shape", "new_days", "seed"),
    [
        ("census", 2, 0),
        pytest.param("census", NEW_DAYS, 0, marks=pytest.mark.nightly),
        pytest.param("census", NEW_DAYS, 1, marks=pytest.mark.nightly),
        pytest.param("film", NEW_DAYS, 0, marks=pytest.mark.nightly),
        pytest.param("film", NEW_DAYS, 1, marks=pytest.mark.nightly),
    ],
)
def test_daily_on_a_small_log_publishes_every_day(shape: str, new_days: int, seed: int, tmp_path: Path) -> None:
    """Protects new users: with default settings, the gate lets every day of a small log through."""
    if shape == "film":
        records = run_days(film_log(72, 120 + NEW_DAYS, seed), FILM_SCHEMA, 120, new_days, seed, tmp_path)
    else:
        records = run_days(census_log(700, DAYS + NEW_DAYS, seed), CENSUS_SCHEMA, DAYS, new_days, seed, tmp_path)
    assert [record["version"] for record in records] == list(range(1, new_days + 2))
    units = {record["comparison"]["intervals"]["unit"] for record in records[1:]}
    assert units == ({"user"} if shape == "film" else {"row"})
    runs = sorted((tmp_path / "runs").iterdir())
    steps = [json.loads((run / "selection.json").read_text())["steps"] for run in runs]
    assert all(count >= (3 if shape == "film" else 8) for count in steps[1:])
