"""A log like MovieLens whose truth is the popularity of the movies alone."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.config import Config, load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder

ROWS, MOVIES, USERS = 12_000, 80, 300
CONFIG = """
name = "movies"
histories = []
features = [
    { name = "user_id", kind = "categorical", owner = "user" },
    { name = "movie_id", kind = "categorical", owner = "item" },
    { name = "year", kind = "numeric", owner = "item" },
]
tasks = [{ name = "liked", kind = "binary" }, { name = "rating", kind = "regression" }]

[columns]
time = "time"
user = "user_id"
item = "movie_id"

[logs]
path = "log"
validation_from = 2026-01-09
test_from = 2026-01-10

[model]
experts = 4
expert_layers = [16]
tower_layers = [8]

[model.gate]
experts_budget = 4

[training]
batch_size = 256
"""


def popularity_log(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return ratings that depend on the movie only; the ids and years of movies say nothing about them."""
    random = np.random.default_rng(seed)
    quality = random.normal(0, 1.5, MOVIES)
    movie = random.integers(MOVIES, size=rows)
    start, step = datetime(2026, 1, 1), timedelta(days=10) / rows
    return pa.table(
        {
            "time": pa.array([start + i * step for i in range(rows)], pa.timestamp("us")),
            "user_id": random.integers(USERS, size=rows),
            "movie_id": movie,
            "year": random.integers(1950, 2020, MOVIES)[movie].astype(float),
            "liked": (random.random(rows) < 1 / (1 + np.exp(-quality[movie]))).astype(np.int8),
            "rating": np.clip(3 + quality[movie] + random.normal(0, 1, rows), 0.5, 5),
        }
    )


@pytest.fixture(scope="session")
def movies(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Configuration of the log."""
    folder = tmp_path_factory.mktemp("movies")
    (folder / "log").mkdir()
    pq.write_table(popularity_log(), folder / "log" / "part-0.parquet")
    (folder / "ranker.toml").write_text(CONFIG)
    return load_config(folder / "ranker.toml")


@pytest.fixture(scope="session")
def movies_run(movies: Config, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with baselines; read only."""
    return RunFolder.open(train(movies, tmp_path_factory.mktemp("run") / "run", baselines=True).path)
