from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from pipelines.config.config import Config, load_config
from pipelines.data.reader import LogReader, load_tables
from pipelines.datasets.movielens import DELAY, GENRES, convert
from pipelines.inspection.profile import LogProfile, profile_log
from ranking.errors import LogError, OutputError
from ranking.schema.features import NumericFeature

WHEEL = "recbole/dataset_example/ml-100k"
DAY = 86_400
START = int(datetime(1998, 3, 1, tzinfo=UTC).timestamp())


def rating(row: int) -> tuple[int, int, int, int]:
    """User, item, stars and Unix time: ten rows per day from 1 March 1998, the first at midnight."""
    day = row // 10 + (row >= 50)  # 6 March has no rows
    return row % 3 + 1, row % 5 + 1, row % 5 + 1, START + day * DAY + row % 10 * DAY // 10


RATINGS = [rating(row) for row in range(100)]
RATINGS[3] = (1, 1, 5, RATINGS[3][3])  # user 1 rated item 1 before
ORDERED = [RATINGS[row * 37 % 100] for row in range(100)]
"""The files are not sorted by time."""

USERS = [(1, 24, "M", "technician", "85711"), (2, 53, "F", "other", "T8H1N"), (3, 7, "M", "none", "01002")]

MOVIES = {
    # id: original title, title and year of RecBole, genres
    1: ("Toy Story (1995)", "Toy Story", "1995", ["Animation", "Children's", "Comedy"]),
    2: ("Misérables, Les (1995)", "Misérables, Les", "1995", ["Drama", "Musical"]),
    3: ("Land Before Time III (1995) (V)", "Land Before Time III (1995)", "V", ["Animation"]),
    4: ("unknown", "unkonwn", "unkonwn", ["unknown"]),
    5: ('Day (Yao a "yao") (1996)', 'Day (Yao a "yao")', "1996", ["Film-Noir", "Sci-Fi", "Western"]),
}


def write_original(folder: Path) -> Path:
    """Write the original files and return their folder."""
    folder.mkdir(parents=True)
    lines = ["\t".join(map(str, row)) for row in ORDERED]
    (folder / "u.data").write_text("\n".join(lines) + "\n")
    (folder / "u.user").write_text("".join("|".join(map(str, user)) + "\n" for user in USERS))
    films = []
    for item, (title, _, _, genres) in MOVIES.items():
        flags = [str(int(genre in genres)) for genre in GENRES]
        films.append("|".join([str(item), title, "01-Jan-1997", "", "http://example.org/?a", *flags]))
    (folder / "u.item").write_text("\n".join(films) + "\n\n", encoding="latin-1")
    return folder


def write_recbole(folder: Path) -> Path:
    """Write the files of RecBole and return their folder."""
    folder.mkdir(parents=True)
    rows: dict[str, list[list[str]]] = {
        "inter": [["user_id:token", "item_id:token", "rating:float", "timestamp:float"]],
        "user": [["user_id:token", "age:token", "gender:token", "occupation:token", "zip_code:token"]],
        "item": [["item_id:token", "movie_title:token_seq", "release_year:token", "class:token_seq"]],
    }
    rows["inter"] += [list(map(str, row)) for row in ORDERED]
    rows["user"] += [list(map(str, user)) for user in USERS]
    rows["item"] += [[str(item), title, year, " ".join(genres)] for item, (_, title, year, genres) in MOVIES.items()]
    for name, lines in rows.items():
        text = "\n".join("\t".join(line) for line in lines)
        (folder / f"ml-100k.{name}").write_text(text + "\n", encoding="utf-8")
    (folder / "ml-100k.link").write_text("item_id:token\tentity_id:token\n")
    return folder


def zipped(folder: Path, file: Path, inside: str) -> Path:
    """Write a zip file with a folder and return its path."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("recbole/__init__.py", "")
        for member in sorted(folder.iterdir()):
            archive.write(member, f"{inside}/{member.name}")
    return file


def write_wheel(folder: Path) -> Path:
    """Write a wheel with the files of RecBole and return its path."""
    return zipped(write_recbole(folder), folder.parent / "recbole-1.2.1-py3-none-any.whl", WHEEL)


def write_original_zip(folder: Path) -> Path:
    """Write a zip file with the original files and return its path."""
    return zipped(write_original(folder), folder.parent / "ml-100k.zip", "ml-100k")


SOURCES = {
    "original": write_original,
    "recbole": write_recbole,
    "wheel": write_wheel,
    "zip": write_original_zip,
}
"""Function that writes a source and returns its path."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("movielens")
    convert(write_original(folder / "raw"), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def config(converted: Path) -> Config:
    return load_config(converted / "ranker.toml")


@pytest.fixture(scope="module")
def profile(config: Config) -> LogProfile:
    schema = config.serving_schema.logged
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    return profile_log(reader, config.logs, schema)


def read_log(folder: Path) -> pa.Table:
    return ds.dataset(folder / "log", format="parquet", partitioning="hive").to_table()


# Sources.


@pytest.mark.parametrize("source", ["recbole", "wheel", "zip"])
def test_every_source_gives_the_same_files(converted: Path, tmp_path: Path, source: str) -> None:
    convert(SOURCES[source](tmp_path / "raw"), tmp_path / "out")
    names = sorted(str(file.relative_to(converted)) for file in converted.rglob("*") if file.is_file())
    assert names == sorted(str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*") if f.is_file())
    for name in names:
        if name.endswith(".parquet"):
            assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(converted / name)), name
        else:
            assert (tmp_path / "out" / name).read_text() == (converted / name).read_text()


# Log.


def test_log_keeps_every_rating_also_repeated_ones(converted: Path) -> None:
    rows = read_log(converted).select(["user_id", "item_id", "rating", "time"]).to_pylist()
    found = [tuple(row.values()) for row in rows]
    expected = [(u, i, float(r), datetime.fromtimestamp(t, UTC).replace(tzinfo=None)) for u, i, r, t in RATINGS]
    assert sorted(found) == sorted(expected)
    assert len({row[:2] for row in found}) < len(found)


def test_log_has_utc_times_without_a_zone_and_their_hour_and_weekday(converted: Path) -> None:
    log = read_log(converted)
    assert log["time"].type == pa.timestamp("ms")
    for row in log.to_pylist():
        assert (row["hour"], row["weekday"]) == (row["time"].hour, row["time"].weekday())
        assert row["date"] == row["time"].date().isoformat()


def test_liked_means_four_stars_or_more(converted: Path) -> None:
    log = read_log(converted)
    assert log["liked"].to_pylist() == [int(stars >= 4) for stars in log["rating"].to_pylist()]


# Side tables.


def test_users_have_age_gender_and_occupation(converted: Path) -> None:
    assert pq.read_table(converted / "users.parquet").to_pylist() == [
        {"user_id": 1, "age": 24, "gender": "M", "occupation": "technician"},
        {"user_id": 2, "age": 53, "gender": "F", "occupation": "other"},
        {"user_id": 3, "age": 7, "gender": "M", "occupation": "none"},
    ]


def test_items_have_title_year_of_the_title_and_genres(converted: Path) -> None:
    items = pq.read_table(converted / "items.parquet")
    assert [tuple(row.values()) for row in items.to_pylist()] == [
        (1, "Toy Story", 1995, ["Animation", "Children's", "Comedy"]),
        (2, "Misérables, Les", 1995, ["Drama", "Musical"]),
        (3, "Land Before Time III", 1995, ["Animation"]),
        (4, "unknown", None, ["unknown"]),
        (5, 'Day (Yao a "yao")', 1996, ["Film-Noir", "Sci-Fi", "Western"]),
    ]
    assert items.column_names == ["item_id", "title", "release_year", "genres"]


# Configuration.


def test_config_has_a_binary_task_and_a_regression(config: Config) -> None:
    assert {task.name: task.kind for task in config.tasks} == {"liked": "binary", "rating": "regression"}


def test_config_has_no_feature_from_after_the_rating(config: Config) -> None:
    assert not {feature.column for feature in config.features} & {"liked", "rating"}


def test_config_counts_ratings_as_soon_as_they_are_known(config: Config) -> None:
    assert [counter.of for counter in config.counters] == [("user_id",), ("item_id",), ("user_id", "genres")]
    assert {entry.delay for entry in (*config.counters, *config.histories)} == {DELAY}
    assert {history.value for history in config.histories} == {0, 1}


def test_config_replaces_an_unknown_year(config: Config) -> None:
    (year,) = [feature for feature in config.features if feature.name == "release_year"]
    assert isinstance(year, NumericFeature)
    assert year.default == 1994


def test_last_tenth_tests_and_the_tenth_before_validates(profile: LogProfile, config: Config) -> None:
    assert config.logs.validation_from == datetime(1998, 3, 10)
    assert config.logs.test_from == datetime(1998, 3, 11)
    assert profile.rows == {"train": 80, "validation": 10, "test": 10}
    assert not profile.bad


def test_splits_start_at_the_nearest_midnights(tmp_path: Path) -> None:
    raw = write_original(tmp_path / "raw")
    # 79 % of the rows are on 1 March, 12 % early on 2 March and 9 % late on 3 March.
    seconds = [0] * 79 + [DAY + 3600] * 12 + [2 * DAY + 80_000] * 9
    (raw / "u.data").write_text("".join(f"1\t1\t3\t{START + second}\n" for second in seconds))
    convert(raw, tmp_path / "out")
    logs = load_config(tmp_path / "out" / "ranker.toml").logs
    assert logs.validation_from == datetime(1998, 3, 2)
    assert logs.test_from == datetime(1998, 3, 3), "not the midnight at which the validation split starts"


def test_log_with_a_missing_day_passes_check(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = set(pc.strftime(read_log(converted)["time"], "%Y-%m-%d").to_pylist())
    assert "1998-03-06" not in days
    assert main(["check", str(converted / "ranker.toml")]) == 0
    assert "rows: train 80, validation 10, test 10" in capsys.readouterr().out


def test_command_prints_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = write_recbole(tmp_path / "raw")
    assert main(["logs", "movielens", "--raw", str(raw), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/ranker.toml\n"


# MovieLens 1M.


def write_1m(folder: Path) -> Path:
    """Write the files of MovieLens 1M and return their folder."""
    folder.mkdir(parents=True)
    (folder / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in ORDERED))
    users = [(1, "F", 1, 10, "48067"), (2, "M", 56, 16, "70072"), (3, "M", 25, 15, "55117-1234")]
    (folder / "users.dat").write_text("".join("::".join(map(str, user)) + "\n" for user in users))
    films = [f"{item}::{title}::{'|'.join(genres)}" for item, (title, _, _, genres) in MOVIES.items()]
    films[3] = "4::Star Wars: Episode VI - Return of the Jedi (1983)::Action|Sci-Fi"
    (folder / "movies.dat").write_text("\n".join(films) + "\n", encoding="latin-1")
    return folder


def test_movielens_1m_gives_the_same_log_with_codes_of_age_and_occupation(converted: Path, tmp_path: Path) -> None:
    convert(write_1m(tmp_path / "raw"), tmp_path / "out")
    assert read_log(tmp_path / "out").equals(read_log(converted))
    assert (tmp_path / "out" / "ranker.toml").read_text() == (converted / "ranker.toml").read_text()
    users = pq.read_table(tmp_path / "out" / "users.parquet").to_pylist()
    assert users[0] == {"user_id": 1, "age": 1, "gender": "F", "occupation": "10"}
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    assert items[1] == {
        "item_id": 2,
        "title": "Misérables, Les",
        "release_year": 1995,
        "genres": ["Drama", "Musical"],
    }
    assert items[3]["title"] == "Star Wars: Episode VI - Return of the Jedi"
    zipped_out = tmp_path / "zipped"
    convert(zipped(tmp_path / "raw", tmp_path / "ml-1m.zip", "ml-1m"), zipped_out)
    assert read_log(zipped_out).equals(read_log(converted))


def test_truncated_file_of_movielens_1m_is_named_with_its_row(tmp_path: Path) -> None:
    raw = write_1m(tmp_path / "raw")
    (raw / "users.dat").write_text("1::F::1::10::48067\n2::M::56\n")
    message = error(raw, tmp_path / "out")
    assert message.startswith(f"{raw}/users.dat: cannot be read")
    assert "#2" in message


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("ratings.dat", "1::2::5::8812509", "its last row is incomplete"),
        ("ratings.dat", "1::2::6::881250949\n", "a rating is not between 1 and 5"),
        ("ratings.dat", "1::9::5::881250949\n", "movie 9 is not in the file of the movies"),
        ("users.dat", "1::F::1::10::48067\n", "user 2 is not in the file of the users"),
    ],
)
def test_cut_or_wrong_file_of_movielens_1m_is_named(tmp_path: Path, name: str, content: str, problem: str) -> None:
    raw = write_1m(tmp_path / "raw")
    (raw / name).write_text(content)
    assert error(raw, tmp_path / "out") == f"{raw}/ratings.dat: {problem}; restore the original files of MovieLens"


# Errors name the file and leave nothing behind.


def error(raw: Path, out: Path) -> str:
    """Convert and return the error, which is one line."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(LogError) as caught:
        convert(raw, out)
    assert sorted(out.parent.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_folder_is_named(tmp_path: Path) -> None:
    message = error(tmp_path / "none", tmp_path / "out")
    assert message.startswith(f"{tmp_path}/none: there is no such folder or file; --raw must name the folder ml-100k")


def test_folder_without_ratings_is_named(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    message = error(tmp_path / "raw", tmp_path / "out")
    assert message.startswith(
        f"{tmp_path}/raw: no file u.data, ml-100k.inter, ratings.dat; --raw must name the folder ml-100k"
    )


def test_zip_file_without_ratings_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    message = error(tmp_path / "other.whl", tmp_path / "out")
    assert message.startswith(f"{tmp_path}/other.whl: no file u.data, ml-100k.inter, ratings.dat; --raw must name")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_original, "u.user"),
        (write_original, "u.item"),
        (write_recbole, "ml-100k.user"),
        (write_recbole, "ml-100k.item"),
    ],
)
def test_missing_file_is_named(tmp_path: Path, write: Callable[[Path], Path], name: str) -> None:
    (write(tmp_path / "raw") / name).unlink()
    message = error(tmp_path / "raw", tmp_path / "out")
    assert message == f"{tmp_path}/raw/{name}: there is no such file; restore the original files of MovieLens"


def test_file_missing_in_a_wheel_is_named(tmp_path: Path) -> None:
    (write_recbole(tmp_path / "raw") / "ml-100k.user").unlink()
    wheel = zipped(tmp_path / "raw", tmp_path / "recbole.whl", WHEEL)
    assert error(wheel, tmp_path / "out").startswith(f"{wheel}/{WHEEL}/ml-100k.user: there is no such file; restore")


def test_file_that_is_not_a_zip_file_is_named(tmp_path: Path) -> None:
    raw = write_original(tmp_path / "raw")
    message = error(raw / "u.data", tmp_path / "out")
    assert message.startswith(f"{raw}/u.data: cannot be read as a zip file (File is not a zip file); --raw must name")


def test_truncated_wheel_is_named(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "raw")
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert error(wheel, tmp_path / "out").startswith(f"{wheel}: cannot be read as a zip file (")


def test_damaged_file_in_a_wheel_is_named(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "raw")
    with zipfile.ZipFile(wheel) as archive:
        entry = archive.getinfo(f"{WHEEL}/ml-100k.inter")
        start = entry.header_offset + 30 + len(entry.filename)
    content = bytearray(wheel.read_bytes())
    content[start + entry.compress_size // 2] ^= 0xFF
    wheel.write_bytes(content)
    assert error(wheel, tmp_path / "out").startswith(f"{wheel}/{WHEEL}/ml-100k.inter: cannot be read (")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("inter", "rating"),
        ("inter", "timestamp"),
        ("user", "age"),
        ("user", "occupation"),
        ("item", "release_year"),
        ("item", "class"),
    ],
)
def test_missing_column_is_named(tmp_path: Path, name: str, column: str) -> None:
    file = write_recbole(tmp_path / "raw") / f"ml-100k.{name}"
    file.write_text(file.read_text(encoding="utf-8").replace(f"{column}:", "other:", 1), encoding="utf-8")
    assert error(tmp_path / "raw", tmp_path / "out").startswith(f"{file}: must have one column {column}; restore")


def test_repeated_column_is_named(tmp_path: Path) -> None:
    file = write_recbole(tmp_path / "raw") / "ml-100k.user"
    file.write_text(file.read_text().replace("gender:", "age:", 1))
    assert error(tmp_path / "raw", tmp_path / "out").startswith(f"{file}: must have one column age; restore")


@pytest.mark.parametrize(
    ("write", "name", "old", "new"),
    [
        (write_original, "u.data", "\n3\t", "\nthree\t"),
        (write_original, "u.data", f"\t{RATINGS[37][3]}\n", "\tsoon\n"),
        (write_original, "u.user", "|53|", "||"),
        (write_original, "u.item", "|1\n", "|yes\n"),
        (write_recbole, "ml-100k.inter", "\n2\t", "\n2.5\t"),
        (write_recbole, "ml-100k.user", "\t53\t", "\told\t"),
    ],
)
def test_text_instead_of_a_number_is_named_with_its_row(
    tmp_path: Path, write: Callable[[Path], Path], name: str, old: str, new: str
) -> None:
    file = write(tmp_path / "raw") / name
    text = file.read_text(encoding="latin-1")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="latin-1")
    message = error(tmp_path / "raw", tmp_path / "out")
    line = text[: text.index(old)].count("\n") + (2 if old.startswith("\n") else 1)
    assert message.startswith(f"{file}: cannot be read (")
    assert f"Row #{line}: CSV conversion error" in message
    assert f"invalid value '{new.strip().strip('|')}'" in message
    assert message.endswith("; restore the original files of MovieLens")


@pytest.mark.parametrize("name", ["u.data", "u.user", "u.item"])
def test_row_with_too_few_values_is_named(tmp_path: Path, name: str) -> None:
    file = write_original(tmp_path / "raw") / name
    file.write_bytes(file.read_bytes().rstrip(b"\n") + b"\n17\n")
    assert error(tmp_path / "raw", tmp_path / "out").startswith(f"{file}: cannot be read (CSV parse error: Row #")


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    file = write_recbole(tmp_path / "raw") / "ml-100k.item"
    file.write_bytes(file.read_bytes().replace("é".encode(), b"\xe9"))
    assert error(tmp_path / "raw", tmp_path / "out").startswith(f"{file}: cannot be read (")


@pytest.mark.parametrize("write", [write_original, write_recbole])
def test_log_without_ratings_is_rejected(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    raw = write(tmp_path / "raw")
    for file in (raw / "u.data", raw / "ml-100k.inter"):
        if file.exists():
            file.write_text(file.read_text().split("\n", 1)[0] + "\n" if file.suffix == ".inter" else "")
    assert error(raw, tmp_path / "out").startswith(str(raw))


@pytest.mark.parametrize("time", ["881250949000", "-1", "nan"])
def test_time_in_another_unit_is_rejected(tmp_path: Path, time: str) -> None:
    raw = write_original(tmp_path / "raw")
    with (raw / "u.data").open("a") as file:
        file.write(f"1\t1\t5\t{time}\n")
    assert error(raw, tmp_path / "out").startswith(f"{raw}/u.data: a time is not in Unix seconds; restore")


def test_convert_into_nonempty_folder_is_rejected(tmp_path: Path) -> None:
    raw = write_original(tmp_path / "raw")
    with pytest.raises(OutputError, match="exists and is never overwritten"):
        convert(raw, raw)
    assert sorted(f.name for f in raw.iterdir()) == ["u.data", "u.item", "u.user"]
