"""Generated logs in the formats of other projects: MovieLens ratings and a census as CSV, clicks as Parquet."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GENRES = ("Action", "Comedy", "Drama", "Horror", "Sci-Fi", "Thriller", "(no genres listed)")
DAY = 86_400


def write_movielens(folder: Path, rows: int = 3000, seed: int = 0) -> None:
    """Write ``ratings.csv`` (userId,movieId,rating,timestamp) and ``movies.csv`` (movieId,title,genres)."""
    random = np.random.default_rng(seed)
    users, movies = max(20, rows // 30), 120
    quality = random.normal(size=movies)
    ratings = []
    for _ in range(rows):
        user, movie = int(random.integers(users)), int(random.integers(movies))
        rating = float(np.clip(np.round(2 * random.normal(3.5 + 0.6 * quality[movie], 0.8)) / 2, 0.5, 5))
        second = 1_100_000_000 + int(random.integers(900 * DAY))
        ratings.append((user + 1, 10 * movie + 3, rating, second))
    _write(folder / "ratings.csv", ["userId", "movieId", "rating", "timestamp"], sorted(ratings))
    films = []
    for movie in range(movies):
        chosen = sorted({GENRES[int(g)] for g in random.integers(6, size=random.integers(1, 4))})
        films.append((10 * movie + 3, f"The {movie}th, Film ({1950 + movie % 70})", "|".join(chosen) or GENRES[-1]))
    _write(folder / "movies.csv", ["movieId", "title", "genres"], films)


def write_census(file: Path, rows: int = 3000, seed: int = 0) -> None:
    """Write records of persons with spaces after commas, "?" for unknown, and the label as text: ">50K" or "<=50K"."""
    random = np.random.default_rng(seed)
    columns = (
        "age, workclass, fnlwgt, education, education_num, marital_status, sex, capital_gain, capital_loss, "
        "hours_per_week, native_country, income"
    )
    schools = ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"]
    lines = [columns]
    for _ in range(rows):
        age, school = int(np.clip(random.normal(39, 13), 17, 90)), int(random.integers(5))
        hours = int(np.clip(random.normal(40, 12), 1, 99))
        gain = int(random.exponential(9000)) if random.random() < 0.08 else 0
        logit = (age - 40) / 15 + school - 2 + (hours - 40) / 15 + gain / 5000 - 1
        values = [
            age,
            random.choice(["Private", "State-gov", "Self-emp-not-inc", "?"]),
            int(random.integers(12_000, 1_400_000)),
            schools[school],
            school + 9,
            random.choice(["Married-civ-spouse", "Never-married", "Divorced"]),
            random.choice(["Male", "Female"]),
            gain,
            int(random.integers(1500, 2500)) if random.random() < 0.05 else 0,
            hours,
            random.choice(["United-States", "Mexico", "?"], p=[0.9, 0.06, 0.04]),
            ">50K" if random.random() < 1 / (1 + np.exp(-logit)) else "<=50K",
        ]
        lines.append(", ".join(map(str, values)))
    file.write_text("\n".join(lines) + "\n")


def clicks(rows: int = 4000, seed: int = 0) -> pa.Table:
    """Return impressions in requests of 8 items: attributes of users and items, a position, and what users did."""
    random = np.random.default_rng(seed)
    requests = rows // 8
    user = np.repeat(random.integers(60, size=requests), 8)
    item = random.integers(90, size=8 * requests)
    position = np.tile(np.arange(1, 9), requests)
    price, country = np.round(random.lognormal(3, 1.5, 90), 2), random.integers(4, size=60)
    rate = 1 / (1 + np.exp(-(random.normal(size=90)[item] - position / 4)))
    click = random.random(len(item)) < rate
    return pa.table(
        {
            "request_id": np.repeat([f"r{i}" for i in range(requests)], 8),
            "ts": pa.array(np.repeat(1_767_225_600_000 + np.sort(random.integers(10 * DAY * 1000, size=requests)), 8)),
            "user_id": pa.array([f"u{u}" for u in user]),
            "item_id": pa.array(item),
            "country": pa.array([("de", "fr", "it", "es")[c] for c in country[user]]),
            "price": price[item],
            "device": pa.array(np.repeat(random.choice(["ios", "android", "web"], requests), 8).tolist()),
            "position": pa.array(position),
            "is_click": pa.array(click.astype(np.int8)),
            "dwell_seconds": np.where(click, random.exponential(30, len(item)), 0.0),
            "purchased": pa.array(click & (random.random(len(item)) < 0.2)),
            "clicked_twice": pa.array(click),
            "campaign": pa.array(["spring"] * len(item)),
            "payload": pa.array([{"a": 1}] * len(item)),
        }
    )


def write_clicks(file: Path, rows: int = 4000, seed: int = 0) -> None:
    """Write ``clicks`` as Parquet."""
    pq.write_table(clicks(rows, seed), file)


def _write(file: Path, header: list[str], rows: list[tuple[object, ...]]) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
