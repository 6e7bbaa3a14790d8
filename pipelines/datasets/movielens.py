"""Adapter for MovieLens 100k and 1M (Harper and Konstan, TiiS 2015), ratings of movies with one to five stars.

Reads the original folder of MovieLens 100k (``u.data``, ``u.user``, ``u.item``), the same as files of RecBole
(``ml-100k.inter``, ``ml-100k.user``, ``ml-100k.item``), or the original folder of MovieLens 1M (``ratings.dat``,
``users.dat``, ``movies.dat``), from a folder or a zip file such as the wheel of RecBole.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from pipelines.datasets.write import counter, feature, task, write_logs
from ranking.artifacts.atomic_files import check_creatable
from ranking.errors import LogError

LIKED_FROM = 4
"""Smallest rating of a liked movie, in stars."""
DELAY = "1m"
"""Duration after which a rating is known: ratings of one page of movies, seconds apart, do not count for each other."""
DAY = 86_400
"""Seconds of a day."""
MAX_TIME = 2**32
"""Bound of times in seconds. Larger ones are in another unit."""

GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
"""Genres in the order of their flags in ``u.item``."""
RATING = ["user_id", "item_id", "rating", "timestamp"]
USER = ["user_id", "age", "gender", "occupation"]
MOVIE = ["item_id", "title", "release_date", "video_release_date", "url", *GENRES]
RECBOLE_MOVIE = ["item_id", "movie_title", "release_year", "class"]
USER_1M = ["user_id", "gender", "age", "occupation", "zip_code"]
MOVIE_1M = ["item_id", "title", "genres"]
"""Columns of the files. Headers of RecBole add a type to each name. Ages and occupations of MovieLens 1M are codes."""
NUMBERS = {
    **{name: pa.int64() for name in ("user_id", "item_id", "age")},
    **{name: pa.float64() for name in ("rating", "timestamp")},
    **{genre: pa.int8() for genre in GENRES},
}
"""Types of the columns that are not text."""
TITLE = re.compile(r"(?P<title>.*) \((?P<year>\d{4})\)")
MISSPELLED = "unkonwn (unkonwn)"
"""Title and year that RecBole writes for the movie whose original title is "unknown", without a year."""
MEDIAN_YEAR = 1994
"""Median release year over the ratings; the year of the movie without one."""

FIX = "--raw must name the folder ml-100k or ml-1m, its zip file, or the wheel of RecBole"
RESTORE = "restore the original files of MovieLens"
RATINGS = ("u.data", "ml-100k.inter", "ratings.dat")
"""Files of ratings, by which a source is recognized."""
DAMAGED = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors of a file that cannot be read, also from a zip file that is damaged or encrypted."""

Location = Path | zipfile.Path
"""Folder or file, also in a zip file."""
Tables = tuple[pa.Table, pa.Table, pa.Table]
"""Ratings, users and movies."""


def convert(raw: Path, out: Path) -> None:
    """Write ``out/ranker.toml``, ``out/log/``, ``out/users.parquet`` and ``out/items.parquet``.

    The log has a row per rating: ``user_id``, ``item_id``, ``time`` (UTC), ``hour``, ``weekday``, ``rating`` (stars)
    and ``liked`` (four stars or more). About the last tenth of the ratings tests and the tenth before validates: the
    splits start at the midnights nearest to the 80 % and 90 % quantiles of the times.

    Raises:
        LogError: a file is missing, cannot be read, or has no such column.
        OutputError: ``out`` is not empty, or cannot be written.
    """
    check_creatable(out)
    ratings, users, movies = _read(raw)
    seconds = ratings["timestamp"].to_numpy()
    write_logs(out, _config(seconds), _log(ratings), users=users.select(USER), items=movies)


def _read(raw: Path) -> Tables:
    if not raw.exists():
        raise LogError(f"{raw}: there is no such folder or file; {FIX}")
    if raw.is_dir():
        return _tables(raw)
    try:
        archive = zipfile.ZipFile(raw)
    except DAMAGED as error:
        raise LogError(f"{raw}: cannot be read as a zip file ({error}); {FIX}") from None
    with archive:
        logs = [name for name in archive.namelist() if PurePosixPath(name).name in RATINGS]
        folder = PurePosixPath(logs[0]).parent.parts if logs else ()
        return _tables(zipfile.Path(archive).joinpath(*folder))


def _tables(folder: Location) -> Tables:
    if (folder / "u.data").is_file():
        movies = _table(folder / "u.item", MOVIE, "|")
        flags = np.stack([movies[genre].to_numpy() for genre in GENRES], axis=1)
        genres = [[GENRES[i] for i in np.flatnonzero(row)] for row in flags]
        items = _items(movies["item_id"], movies["title"].to_pylist(), genres)
        users = _table(folder / "u.user", [*USER, "zip_code"], "|")
        return _checked(folder / "u.data", _table(folder / "u.data", RATING, "\t"), users, items)
    if (folder / "ml-100k.inter").is_file():
        movies = _typed_table(folder / "ml-100k.item", RECBOLE_MOVIE)
        # RecBole makes the text in the last parentheses of the title a column.
        titles = [f"{row['movie_title']} ({row['release_year']})" for row in movies.to_pylist()]
        titles = ["unknown" if title == MISSPELLED else title for title in titles]
        items = _items(movies["item_id"], titles, pc.split_pattern(movies["class"], " "))
        file, users = folder / "ml-100k.inter", _typed_table(folder / "ml-100k.user", USER)
        return _checked(file, _typed_table(file, RATING), users, items)
    if (folder / "ratings.dat").is_file():
        movies = _table(folder / "movies.dat", MOVIE_1M, "::")
        items = _items(movies["item_id"], movies["title"].to_pylist(), pc.split_pattern(movies["genres"], "|"))
        users = _table(folder / "users.dat", USER_1M, "::")
        return _checked(folder / "ratings.dat", _table(folder / "ratings.dat", RATING, "::"), users, items)
    raise LogError(f"{str(folder).rstrip('/')}: no file {', '.join(RATINGS)}; {FIX}")


def _checked(file: Location, ratings: pa.Table, users: pa.Table, movies: pa.Table) -> Tables:
    """Return the tables.

    Raises:
        LogError: the file of the ratings was cut, or has a time, a rating, a user or a movie that cannot be.
    """
    seconds, stars = ratings["timestamp"].to_numpy(), ratings["rating"].to_numpy()
    problems = {
        "there is no rating": not seconds.size,
        "its last row is incomplete": not _content(file).endswith(b"\n"),
        "a time is not in Unix seconds": not np.all((seconds >= 0) & (seconds < MAX_TIME)),
        "a rating is not between 1 and 5": not np.all((stars >= 1) & (stars <= 5)),
    }
    for name, key, known in (("user", "user_id", users), ("movie", "item_id", movies)):
        unknown = np.setdiff1d(ratings[key].to_numpy(), known[key].to_numpy())
        if unknown.size:
            problems[f"{name} {unknown[0]} is not in the file of the {name}s"] = True
    for problem, is_found in problems.items():
        if is_found:
            raise LogError(f"{file}: {problem}; {RESTORE}")
    return ratings, users, movies


def _typed_table(file: Location, needed: list[str]) -> pa.Table:
    """Read a file of RecBole: tabs, UTF-8, and a header such as ``user_id:token``."""
    header = _content(file).split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    columns = [name.split(":")[0] for name in header.split("\t")]
    for name in needed:
        if columns.count(name) != 1:
            raise LogError(f"{file}: must have one column {name}; {RESTORE}")
    return _table(file, columns, "\t", encoding="utf-8", skip_rows=1).select(needed)


def _table(
    file: Location, columns: list[str], delimiter: str, encoding: str = "latin-1", skip_rows: int = 0
) -> pa.Table:
    content = _content(file)
    if len(delimiter) > 1:
        content, delimiter = content.replace(delimiter.encode(), b"\x1f"), "\x1f"  # The reader takes one character.
    try:
        return pa_csv.read_csv(
            BytesIO(content),
            read_options=pa_csv.ReadOptions(
                use_threads=False,  # errors then contain the number of the row
                column_names=columns,
                encoding=encoding,
                skip_rows=skip_rows,
            ),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, quote_char=False),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: NUMBERS.get(name, pa.string()) for name in columns}, null_values=[]
            ),
        )
    except pa.ArrowException as error:
        raise LogError(f"{file}: cannot be read ({error}); {RESTORE}") from None


def _content(file: Location) -> bytes:
    if not file.is_file():
        raise LogError(f"{file}: there is no such file; {RESTORE}")
    try:
        return file.read_bytes()
    except DAMAGED as error:
        raise LogError(f"{file}: cannot be read ({error}); {RESTORE}") from None


def _log(ratings: pa.Table) -> pa.Table:
    time = ratings["timestamp"].cast(pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("ms"))
    return pa.table(
        {
            "user_id": ratings["user_id"],
            "item_id": ratings["item_id"],
            "time": time,
            "hour": pc.hour(time),
            "weekday": pc.day_of_week(time),
            "rating": ratings["rating"],
            "liked": pc.greater_equal(ratings["rating"], LIKED_FROM).cast(pa.int8()),
        }
    )


def _items(ids: pa.ChunkedArray, titles: list[str], genres: Any) -> pa.Table:
    """Return the items; ``titles`` end with the year, as in "Toy Story (1995)"."""
    found = [TITLE.match(title) for title in titles]
    years = [int(match["year"]) if match else None for match in found]
    names = [match["title"] if match else title for match, title in zip(found, titles, strict=True)]
    return pa.table(
        {
            "item_id": ids,
            "title": pa.array(names, pa.string()),
            "release_year": pa.array(years, pa.int64()),
            "genres": genres,
        }
    )


def _config(seconds: npt.NDArray[np.float64]) -> dict[str, Any]:
    validation, test = (round(float(np.quantile(seconds, share)) / DAY) for share in (0.8, 0.9))
    bounds = {"validation_from": validation, "test_from": max(test, validation + 1)}
    logs = {key: datetime.fromtimestamp(day * DAY, UTC).replace(tzinfo=None).isoformat() for key, day in bounds.items()}
    features = [feature("user_id", "categorical", "user"), feature("item_id", "categorical", "item")]
    features += [feature("age", "numeric", "user")]
    features += [feature(name, "categorical", "user") for name in ("gender", "occupation")]
    features += [feature("genres", "bag", "item"), feature("release_year", "numeric", "item", default=MEDIAN_YEAR)]
    features += [feature(name, "categorical", "context") for name in ("hour", "weekday")]
    tasks = [task("liked", "binary"), task("rating", "regression", min=1, max=5)]
    keys = (["user_id"], ["item_id"], ["user_id", "genres"])
    history = {"of": "item_id", "label": "liked", "max_length": 20, "delay": DELAY}
    return {
        "name": "movielens",
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "logs": {**logs, "allow_missing_days": True},
        "model": {"gate": {"kind": "dselect_k"}},
        "training": {"batch_size": 256},
        "serving": {"objective": {"liked": 1.0}},
        "counters": [counter(of, ["liked", "rating"], delay=DELAY) for of in keys],
        "histories": [history, {**history, "value": 0}],
        "features": features,
        "tasks": tasks,
    }
