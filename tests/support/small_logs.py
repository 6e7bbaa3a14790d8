"""Generated logs of two small shapes, whose days arrive one by one: film ratings, and a census without users."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

FIRST_DAY = datetime(2026, 1, 1)
FACTORS = 3
HISTORY = 20
"""Maximum number of liked films in a user's history."""


def film_log(rows_per_day: int, days: int, seed: int = 0, users: int = 0) -> pa.Table:
    """Return ratings in sessions, as in MovieLens: text ids, genres, and the liked films so far as a history.

    Args:
        rows_per_day: number of ratings per day, in sessions of 12.
        days: number of days.
        seed: seed of all random draws.
        users: number of users; default: on average four sessions per user.
    """
    random = np.random.default_rng(seed)
    session_rows, films = 12, 400
    sessions = rows_per_day // session_rows
    users = users or max(40, sessions * days // 4)
    tastes = random.normal(size=(users, FACTORS))
    styles = random.normal(size=(films, FACTORS))
    quality = random.normal(size=films)
    popularity = np.arange(1, films + 1) ** -0.7
    genres = [
        [f"genre{f}{'+' if style[f] > 0 else '-'}" for f in range(FACTORS) if abs(style[f]) > 0.5] for style in styles
    ]
    histories: dict[int, list[str]] = {}
    rows: list[dict[str, Any]] = []
    for day in range(days):
        for session in range(sessions):
            user = int(random.integers(users))
            history = histories.setdefault(user, [])
            shown = random.choice(films, session_rows, replace=False, p=popularity / popularity.sum())
            start = FIRST_DAY + timedelta(days=day, minutes=1440 * session / sessions)
            for position, film in enumerate(shown.tolist()):
                mean = 3.4 + 0.5 * quality[film] + 0.35 * float(tastes[user] @ styles[film])
                rating = float(np.clip(np.round(2 * random.normal(mean, 0.7)) / 2, 0.5, 5))
                rows.append(
                    {
                        "time": start + timedelta(seconds=20 * position),
                        "user_id": f"user-{user}",
                        "item_id": f"tt{film:05}",
                        "genres": genres[film],
                        "history": list(history[-HISTORY:]),
                        "liked": int(rating >= 4),
                        "rating": rating,
                    }
                )
                if rating >= 4:
                    history.append(f"tt{film:05}")
    return pa.Table.from_pylist(rows)


FILM_SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "user_id", "kind": "categorical", "owner": "user"},
        {"name": "item_id", "kind": "categorical", "owner": "item"},
        {"name": "genres", "kind": "bag", "owner": "item", "dim": 8},
        {"name": "history", "kind": "sequence", "owner": "user", "table": "item_id"},
    ],
    "tasks": [{"name": "liked", "kind": "binary"}, {"name": "rating", "kind": "regression"}],
}


def census_log(rows_per_day: int, days: int, seed: int = 0) -> pa.Table:
    """Return records of persons with categorical and numeric features and rare labels; the user id is always null."""
    random = np.random.default_rng(seed)
    count = rows_per_day * days
    age = np.clip(random.normal(40, 15, count), 16, 90)
    hours = np.clip(random.normal(38, 10, count), 0, 90)
    gain = np.where(random.random(count) < 0.1, random.exponential(4000, count), 0.0)
    job, school, region = (random.integers(n, size=count) for n in (14, 16, 50))
    effects: list[npt.NDArray[np.float64]] = [
        random.normal(0, scale, n) for scale, n in ((0.8, 14), (0.7, 16), (0.2, 50))
    ]
    logit = (age - 40) / 20 + (hours - 38) / 15 + np.log1p(gain) / 4
    logit = logit + effects[0][job] + effects[1][school] + effects[2][region] - 3.6
    never_married = random.random(count) < 1 / (1 + np.exp((age - 28) / 6))
    second = np.sort(random.integers(days * 86_400, size=count))
    return pa.table(
        {
            "time": np.datetime64(FIRST_DAY, "ms") + (second * 1000).astype("timedelta64[ms]"),
            "user_id": pa.nulls(count, pa.string()),
            "item_id": np.arange(count),
            "age": age,
            "hours": hours,
            "gain": gain,
            "job": pa.array([f"job-{i}" for i in job]),
            "school": pa.array([f"school-{i}" for i in school]),
            "region": pa.array([f"region-{i}" for i in region]),
            "income": (random.random(count) < 1 / (1 + np.exp(-logit))).astype(np.int8),
            "never_married": never_married.astype(np.int8),
        }
    )


CENSUS_SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "age", "kind": "numeric", "owner": "item"},
        {"name": "hours", "kind": "numeric", "owner": "item"},
        {"name": "gain", "kind": "numeric", "owner": "item", "transform": "log1p"},
        {"name": "job", "kind": "categorical", "owner": "item"},
        {"name": "school", "kind": "categorical", "owner": "item"},
        {"name": "region", "kind": "categorical", "owner": "item"},
    ],
    "tasks": [{"name": "income", "kind": "binary"}, {"name": "never_married", "kind": "binary"}],
}


def write_days(table: pa.Table, log: Path, first: int, last: int) -> None:
    """Write the rows of days [first, last), counted from 0, to ``log/date=…/part-0.parquet``."""
    days = (table["time"].to_numpy() - np.datetime64(FIRST_DAY)) // np.timedelta64(1, "D")
    for day in range(first, last):
        folder = log / f"date={(FIRST_DAY + timedelta(days=day)).date()}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.filter(pa.array(days == day)), folder / "part-0.parquet")
