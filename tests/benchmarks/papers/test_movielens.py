"""Tests of the MovieLens experiment: its examples, its trials, and the original data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from benchmarks.papers.__main__ import main
from benchmarks.papers.movielens import (
    ALPHAS,
    DSELECT_K,
    DSELECT_K_PER_EXAMPLE,
    GUMBEL,
    METHODS,
    PAPER,
    SETTINGS,
    SOFTMAX,
    TRIALS,
    claims,
    loss_weights,
    sample_unwatched,
    write_examples,
)
from pipelines.config.config import load_config
from tests.pipelines.datasets.test_movielens import ORDERED, write_1m


def read(folder: Path) -> pa.Table:
    return ds.dataset(folder / "log", partitioning="hive").to_table().sort_by("time")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_raw(tmp_path / "raw")


def write_raw(folder: Path) -> Path:
    """Write the files of MovieLens 1M with movies that nobody has rated, and return their folder."""
    write_1m(folder)
    with (folder / "movies.dat").open("a", encoding="latin-1") as file:
        file.writelines(f"{movie}::Unrated {movie} (1999)::Drama\n" for movie in range(6, 21))
    return folder


def test_examples_are_the_ratings_and_as_many_unwatched_movies_in_a_random_split(raw: Path, tmp_path: Path) -> None:
    write_examples(raw, tmp_path / "out")
    log = read(tmp_path / "out")
    assert log["date"].value_counts().to_pylist() == [
        {"values": day, "counts": rows} for day, rows in (("2000-01-01", 160), ("2000-01-02", 20), ("2000-01-03", 20))
    ]
    watched = log.filter(pc.equal(log["watched"], 1)).select(["user_id", "item_id", "rating"]).to_pylist()
    expected = [(user, item, float(stars)) for user, item, stars, _ in ORDERED]
    assert sorted(tuple(row.values()) for row in watched) == sorted(expected)
    others = log.filter(pc.equal(log["watched"], 0))
    assert others["rating"].null_count == len(others) == len(expected)
    assert pc.min(others["item_id"]).as_py() > 5, "a user has rated all of the first five movies"
    assert sorted(others["user_id"].to_pylist()) == sorted(user for user, *_ in expected)
    shares = [pc.mean(log["watched"].slice(start, 80)).as_py() for start in (0, 80)]
    assert all(0.3 < share < 0.7 for share in shares), "the rows are not shuffled"
    write_examples(raw, tmp_path / "again")
    assert read(tmp_path / "again").equals(log)


def test_unwatched_movies_are_uniform_over_those_that_the_user_has_not_watched() -> None:
    users, watched = np.repeat([7, 9], 3000), np.concatenate([np.tile([10, 20], 1500), np.tile([30], 3000)])
    sampled = sample_unwatched(users, watched, np.array([40, 30, 20, 10]), np.random.default_rng(0))
    for user, movies in ((7, [30, 40]), (9, [10, 20, 40])):
        values, counts = np.unique(sampled[users == user], return_counts=True)
        assert values.tolist() == movies
        assert counts == pytest.approx(3000 / len(movies), rel=0.1)


def test_every_method_has_distinct_valid_trials_and_numbers_of_the_paper(raw: Path, tmp_path: Path) -> None:
    write_examples(raw, tmp_path / "out")
    for name, method in METHODS.items():
        trials = method.trials(TRIALS)
        assert len(set(trials)) == TRIALS
        for trial in trials:
            overrides = [*SETTINGS, loss_weights(0.1), *method.settings, *trial]
            config = load_config(tmp_path / "out" / "ranker.toml", overrides)
            assert [task.weight for task in config.tasks] == pytest.approx([0.1, 0.45])
        assert all(name in PAPER[alpha] for alpha in ALPHAS)


def made_up(losses: dict[str, float], experts: dict[str, float]) -> dict[str, Any]:
    """Return results with these losses, ± 0.001 over two seeds, and numbers of experts."""
    methods = {
        name: {
            "runs": [
                {"loss": losses.get(name, 0.5) + noise * (1 + place / 10), "experts": experts.get(name, 2.0)}
                for noise in (-1e-3, 1e-3)
            ]
        }
        for place, name in enumerate(METHODS)
    }
    return {"alphas": {"0.1": methods}}


def test_claims_compare_losses_and_experts_beyond_their_intervals() -> None:
    def verdicts(losses: dict[str, float], experts: dict[str, float]) -> list[str]:
        return [verdict for _, verdict in claims(made_up(losses, experts))]

    fewer = {DSELECT_K: 1.5, DSELECT_K_PER_EXAMPLE: 1.0}
    assert verdicts({}, {}) == ["not decided", "not decided", "failed"]
    assert verdicts({DSELECT_K_PER_EXAMPLE: 0.4, SOFTMAX: 0.6}, fewer) == ["held", "held", "held"]
    assert verdicts({DSELECT_K: 0.4, GUMBEL: 0.3}, {DSELECT_K: 1.5}) == ["failed", "not decided", "failed"]


def test_missing_or_unusable_files_are_named_with_their_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete = write_1m(tmp_path / "complete")
    for options, problem in (
        ([], "--raw DIR is missing"),
        (["--raw", str(tmp_path)], f"{tmp_path}: no file u.data, ml-100k.inter, ratings.dat"),
        (["--raw", str(complete)], "a user has rated every movie, so that no movie is unwatched"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["movielens", "--quick", "--out", str(tmp_path / "out"), *options])
        assert exit_.value.code == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert problem in message
        assert "the folder ml-1m (https://grouplens.org/datasets/movielens/1m/) with ratings.dat, users.dat" in message
