"""MovieLens: whether a user watches a movie, and the rating (DSelect-k, tables 1, C.3 and C.4, figure C.7)."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from benchmarks.papers.plots import expert_weights
from benchmarks.papers.tuning import FRESH_SEED, TUNING_SEED
from benchmarks.papers.verdicts import Verdict, all_of, any_of, is_lower
from benchmarks.product import Outcome, format_overrides, trained, tune
from pipelines.bench.tables import section
from pipelines.config.config import load_config
from pipelines.console import print_status
from pipelines.datasets import movielens
from pipelines.datasets.write import feature, task, write_logs
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus
from pipelines.evaluation.predict import predict
from pipelines.evaluation.sources import run_scorers
from pipelines.runs.run import RunFolder
from ranking.errors import LogError

RAW = (
    "the folder ml-1m (https://grouplens.org/datasets/movielens/1m/) with ratings.dat, users.dat and movies.dat, or "
    "ml-100k with u.data, u.user and u.item, also as the zip file, or the wheel of RecBole 1.2.1, which has ml-100k"
)
SEEDS = 5
TRIALS = 6
"""Trials of the random search per method and α."""
ALPHAS = (0.1, 0.5, 0.9)
"""Weights of task 1; that of task 2 is 1 − α."""
EXPERTS = 8
SPLITS = (0.8, 0.1, 0.1)
"""Fractions of the rows that train, validate and test; 1.6 M, 0.2 M and 0.2 M for MovieLens 1M."""
DATA_SEED = 0
"""Seed of the unwatched movies and of the split."""
FIRST_DAY = datetime(2000, 1, 1)
"""Day of the training rows; those of the next two days validate and test."""
WATCHED, RATING = "watched", "rating"
SETTINGS = (
    "evaluation.bootstrap=0",
    "evaluation.baselines=[]",
    "training.batch_size=512",
    "training.checks_per_epoch=4",
    "training.oov_dropout=0",
    f"model.experts={EXPERTS}",
    "model.expert_layers=[256]",
    "model.tower_layers=[256]",
    "model.dropout=0.5",
)
"""Overrides of all methods."""
QUICK = ("training.epochs=1", "training.batch_size=64", "training.checks_per_epoch=2")
"""Overrides of the quick form."""

Choices = tuple[tuple[str, ...], ...]
"""Alternatives of one hyperparameter; each is a list of overrides."""


def _choices(key: str, *values: object) -> Choices:
    return tuple((f"{key}={value}",) for value in values)


RATES = (
    _choices("training.learning_rate.embeddings", 0.001, 0.01, 0.1, 0.2, 0.3),
    _choices("training.learning_rate.trunk", 3e-4, 1e-3, 3e-3),
    _choices("training.epochs", 2, 5, 10),
)
GATE_RATES = _choices("training.learning_rate.gates", 1e-3, 1e-2)
K = _choices("model.gate.k", 2, 4)
ANNEALING = (
    _choices("training.convergence.gamma", 1, 10),
    (
        ("training.convergence.anneal_from=0.1", "training.convergence.anneal_until=0.3"),
        ("training.convergence.anneal_from=0.25", "training.convergence.anneal_until=0.6"),
    ),
)
PER_EXAMPLE = "model.gate.per_example=true"


@dataclass(frozen=True)
class Method:
    """A method and the hyperparameters to tune.

    Attributes:
        settings: overrides of all trials.
        space: alternatives of each hyperparameter, besides the learning rates and epochs.
    """

    settings: tuple[str, ...]
    space: tuple[Choices, ...]

    def trials(self, count: int) -> list[tuple[str, ...]]:
        """Draw distinct trials of the random search."""
        draws = random.Random(TUNING_SEED)
        trials: dict[tuple[str, ...], None] = {}
        while len(trials) < count:
            chosen = [draws.choice(choices) for choices in (*RATES, *self.space)]
            trials[tuple(itertools.chain(*chosen))] = None
        return list(trials)


DSELECT_K, TOP_K, GUMBEL = "DSelect-k, static", "Top-k, static", "Gumbel-softmax, static"
DSELECT_K_PER_EXAMPLE, TOP_K_PER_EXAMPLE = "DSelect-k, per example", "Top-k, per example"
SOFTMAX, SHARED_BOTTOM = "Softmax", "Shared bottom"
METHODS = {
    DSELECT_K: Method((f"model.gate.experts_budget={EXPERTS}", "model.gate.start=random"), (GATE_RATES, K, *ANNEALING)),
    TOP_K: Method(("model.gate.kind=top_k",), (GATE_RATES, K)),
    GUMBEL: Method(
        ("model.gate.kind=gumbel_softmax",),
        (GATE_RATES, _choices("model.gate.sparsity_weight", *(10.0**power for power in range(-6, 2)))),
    ),
    DSELECT_K_PER_EXAMPLE: Method((PER_EXAMPLE,), (K, *ANNEALING)),
    TOP_K_PER_EXAMPLE: Method(("model.gate.kind=top_k", PER_EXAMPLE), (K,)),
    SOFTMAX: Method(("model.gate.kind=softmax",), (GATE_RATES, _choices("model.gate.per_example", "false", "true"))),
    SHARED_BOTTOM: Method(
        ("model.gate.kind=shared_bottom",), (_choices("model.expert_layers", "[32]", "[256]", "[2048]"),)
    ),
}
MAX_EXPERTS = 4
"""Number of experts that a tuned Gumbel-softmax gate may select per task on average, as in the paper."""
PAPER = {
    0.1: {
        DSELECT_K: ("4015 ± 5", "2.7", "4038 ± 5", "83.03 ± 0.07"),
        TOP_K: ("4012 ± 4", "2.0", "4056 ± 4", "84.09 ± 0.05"),
        GUMBEL: ("4171 ± 3", "2.7", "4172 ± 2", "80.76 ± 0.04"),
        DSELECT_K_PER_EXAMPLE: ("4006 ± 6", "1.5", "4030 ± 7", "83.03 ± 0.12"),
        TOP_K_PER_EXAMPLE: ("4027 ± 8", "2.0", "4057 ± 9", "83.28 ± 0.1"),
        SOFTMAX: ("4090 ± 1", "8.0", "4047 ± 1", "78.73 ± 0.01"),
        SHARED_BOTTOM: ("4037 ± 2", "–", "3993 ± 2", "79.06 ± 0.02"),
    },
    0.5: {
        DSELECT_K: ("3804 ± 3", "1.5", "3926 ± 6", "83.86 ± 0.02"),
        TOP_K: ("3818 ± 2", "2.0", "4002 ± 4", "84.21 ± 0.02"),
        GUMBEL: ("3898 ± 2", "2.6", "4085 ± 3", "83.71 ± 0.01"),
        DSELECT_K_PER_EXAMPLE: ("3823 ± 3", "1.2", "3981 ± 7", "83.92 ± 0.03"),
        TOP_K_PER_EXAMPLE: ("3841 ± 4", "2.0", "3995 ± 8", "83.91 ± 0.03"),
        SOFTMAX: ("3960 ± 3", "8.0", "4028 ± 3", "83.56 ± 0.01"),
        SHARED_BOTTOM: ("3868 ± 2", "–", "3875 ± 2", "82.65 ± 0.02"),
    },
    0.9: {
        DSELECT_K: ("3690 ± 2", "1.3", "3943 ± 5", "84.04 ± 0.01"),
        TOP_K: ("3693 ± 6", "2.0", "3884 ± 4", "84.17 ± 0.02"),
        GUMBEL: ("3688 ± 4", "3.6", "3878 ± 4", "84.17 ± 0.02"),
        DSELECT_K_PER_EXAMPLE: ("3679 ± 2", "1.1", "3932 ± 1", "84.07 ± 0.02"),
        TOP_K_PER_EXAMPLE: ("3741 ± 3", "2.0", "3914 ± 4", "84.05 ± 0.01"),
        SOFTMAX: ("3847 ± 10", "8.0", "3970 ± 3", "83.86 ± 0.02"),
        SHARED_BOTTOM: ("3687 ± 1", "–", "3991 ± 2", "84.01 ± 0.01"),
    },
}
"""Loss · 10⁴ and experts of table 1, loss of task 2 · 10⁴ and accuracy of task 1 in % of table C.4, by α."""
PAPER_CONVERGENCE = {0.1: ("11.37 %", "1.5"), 0.5: ("9.39 %", "1.2"), 0.9: ("0.04 %", "0.6")}
"""Steps until binary, and FLOPs relative to Top-k, of table C.3, by α."""


def write_examples(raw: Path, out: Path) -> dict[str, int]:
    """Write a log with one sampled unwatched movie for each watched one, in a random split.

    The unwatched movies of a user are drawn uniformly, with replacement. ``rating`` is null for them.

    Args:
        raw: folder of the original files.
        out: new folder for the log and its ``ranker.toml``.

    Returns:
        Numbers of ratings, users and movies.

    Raises:
        LogError: a file is missing or damaged, or a user has watched every movie.
    """
    with TemporaryDirectory() as folder:
        original = Path(folder) / "original"
        movielens.convert(raw, original)
        ratings = ds.dataset(original / "log").to_table(columns=["user_id", "item_id", "rating"])
        users, items = (pq.read_table(original / name) for name in ("users.parquet", "items.parquet"))
    user, movie = ratings["user_id"].to_numpy(), ratings["item_id"].to_numpy()
    draws = np.random.default_rng(DATA_SEED)
    unwatched = sample_unwatched(user, movie, items["item_id"].to_numpy(), draws)
    rows = 2 * len(user)
    order, times = draws.permutation(rows), _split_times(rows)
    stars = pa.concat_arrays([ratings["rating"].combine_chunks(), pa.nulls(len(user), pa.float64())])
    log = pa.table(
        {
            "user_id": np.tile(user, 2)[order],
            "item_id": np.concatenate([movie, unwatched])[order],
            "time": times,
            WATCHED: (order < len(user)).astype(np.int8),
            RATING: stars.take(pa.array(order)),
        }
    )
    config = {
        "name": "movielens",
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "logs": {
            "validation_from": (FIRST_DAY + timedelta(days=1)).isoformat(),
            "test_from": (FIRST_DAY + timedelta(days=2)).isoformat(),
        },
        "features": [feature(name, "categorical", owner) for name, owner in (("user_id", "user"), ("item_id", "item"))],
        "tasks": [task(WATCHED, "binary"), task(RATING, "regression", min=1, max=5)],
    }
    write_logs(out, config, log, users=users.select(["user_id"]), items=items.select(["item_id"]))
    return {"ratings": len(ratings), "users": len(users), "movies": len(items)}


def sample_unwatched(
    users: npt.NDArray[np.int64],
    watched: npt.NDArray[np.int64],
    movies: npt.NDArray[np.int64],
    draws: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draw a movie that the user has not watched for each pair of a user and a watched movie [pairs].

    Args:
        users: user of each pair [pairs].
        watched: watched movie of each pair [pairs].
        movies: ids of all movies.
        draws: random number generator.

    Raises:
        LogError: a user has watched every movie.
    """
    movies = np.unique(movies)
    user = np.unique(users, return_inverse=True)[1]
    pairs = np.unique(user * len(movies) + np.searchsorted(movies, watched))
    if np.bincount(pairs // len(movies)).max() == len(movies):
        raise LogError("a user has rated every movie, so that no movie is unwatched")
    sampled = np.empty(len(users), np.int64)
    missing = np.arange(len(users))
    while missing.size:
        sampled[missing] = draws.integers(len(movies), size=missing.size)
        missing = missing[np.isin(user[missing] * len(movies) + sampled[missing], pairs)]
    return movies[sampled]


def _split_times(rows: int) -> npt.NDArray[np.datetime64]:
    """Return a distinct time for each row, on the first, second or third day according to its split."""
    ends = np.rint(np.cumsum(SPLITS) * rows).astype(np.int64)
    day = np.searchsorted(ends[:-1], np.arange(rows), side="right")
    return np.datetime64(FIRST_DAY, "ms") + day * np.timedelta64(1, "D") + np.arange(rows) * np.timedelta64(1, "ms")


def loss_weights(alpha: float) -> str:
    """Return the override that weights the tasks.

    The paper's losses are means over all rows, of which half have a rating. The product's loss of the rating is the
    mean over rows with a rating, so that its weight is (1 − α)/2.
    """
    return (
        f'tasks=[{{name="{WATCHED}", kind="binary", weight={alpha}}}, '
        f'{{name="{RATING}", kind="regression", min=1, max=5, weight={(1 - alpha) / 2}}}]'
    )


def run(seeds: int, *, quick: bool, raw: Path | None = None) -> dict[str, Any]:
    """Tune and compare all methods for each α; the quick form has one α.

    Raises:
        LogError: the original files are missing or damaged.
    """
    if raw is None:
        raise LogError("--raw DIR is missing")
    fresh = range(FRESH_SEED, FRESH_SEED + seeds)
    alphas: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        log, runs = Path(folder) / "log" / "ranker.toml", Path(folder) / "run"
        data = write_examples(raw, log.parent)
        for alpha in ALPHAS[1:2] if quick else ALPHAS:
            methods = {}
            for name, method in METHODS.items():
                settings = [*SETTINGS, loss_weights(alpha), *method.settings]
                trials = [(*trial, *QUICK) for trial in method.trials(1)] if quick else method.trials(TRIALS)
                seed = range(TUNING_SEED, TUNING_SEED + 1)
                allowed = _few_experts if name == GUMBEL else lambda _: True
                tuned, records = tune(log, settings, trials, seed, runs, allowed)
                results = [_measure(log, [*settings, *tuned], alpha, seed, runs) for seed in fresh]
                methods[name] = {"tuned": tuned, "trials": records, "runs": results}
                loss, _ = mean_and_error(_values(methods[name], "loss"))
                print_status(f"α = {alpha}, {name}: test loss {loss:.0f}")
            alphas[str(alpha)] = methods
    return {"data": data, "alphas": alphas}


def _few_experts(outcome: Outcome) -> bool:
    """Return whether a static gate selected few experts."""
    return statistics.mean(map(len, outcome.selection["tasks"].values())) <= MAX_EXPERTS


def _measure(log: Path, settings: Sequence[str], alpha: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train a tuned method once and read the test split; losses are means over all rows, as in the paper."""
    with trained(load_config(log, [*settings, f"training.seed={seed}"]), folder) as run:
        outcome, accuracy = Outcome.read(run), _accuracy(run)
    assert outcome.evaluation is not None
    tasks, selection = outcome.evaluation["tasks"], outcome.selection
    rating_loss = tasks[RATING]["rmse"] ** 2 * tasks[RATING]["rows"] / outcome.evaluation["rows"]
    return {
        "seed": seed,
        "loss": alpha * tasks[WATCHED]["logloss"] + (1 - alpha) * rating_loss,
        "rating_loss": rating_loss,
        "accuracy": accuracy,
        "experts": statistics.mean(outcome.evaluation["gates"]["experts_a_task"].values()),
        "k": selection["k"],
        "binary_at_step": selection["binary_at_step"],
        "steps": selection["steps"],
        "experts_of_top_k": selection["training_experts_of_top_k"],
        "trajectory": [
            (line["step"], [round(weight, 4) for weight in line["gate_weights"][WATCHED]]) for line in outcome.metrics
        ],
    }


def _accuracy(run: RunFolder) -> float:
    """Return the accuracy of task 1 on the test split."""
    (scorer,) = run_scorers(run)
    predictions = predict(scorer, scorer.log_range(None))
    return float(np.mean((predictions.outputs.column(0) > 0) == (predictions.labels.column(0) == 1)))


def format_tables(results: dict[str, Any]) -> str:
    """Format a table per α, and table C.3."""
    alphas = results["alphas"]
    counts = ", ".join(f"{count:,} {name}" for name, count in results["data"].items())
    data = f"Our data: {counts}. The paper's: MovieLens 1M, with 1,000,209 ratings, 6,040 users and 3,883 movies.\n"
    tables = [_table(float(alpha), methods) for alpha, methods in alphas.items()]
    rows = [
        (
            f"α = {alpha}",
            plus_minus(*mean_and_error(_values(methods[DSELECT_K], "percent")), 1) + " %",
            plus_minus(*mean_and_error(_relative_experts(methods)), 2),
            *PAPER_CONVERGENCE[float(alpha)],
        )
        for alpha, methods in alphas.items()
    ]
    header = ("", "steps until binary", "experts / Top-k", "paper: steps until binary", "paper: FLOPs / Top-k")
    caption = (
        "Static DSelect-k: steps until every code is binary and stays so, in % of all steps of the configuration; "
        "experts that run for a task in training relative to the tuned static Top-k. Means with standard errors over "
        "seeds."
    )
    return "\n".join([data, *tables, section("Conditional training (table C.3)", caption, header, rows)])


def _table(alpha: float, methods: dict[str, Any]) -> str:
    rows = []
    for name, method in methods.items():
        loss, experts, rating_loss, accuracy = PAPER[alpha][name]
        rows.append(
            (
                name,
                plus_minus(*mean_and_error(_values(method, "loss")), 0),
                loss,
                plus_minus(*_difference(methods, DSELECT_K, name), 0) if name != DSELECT_K else "–",
                f"{statistics.mean(_values(method, 'experts')):.1f}" if name != SHARED_BOTTOM else "–",
                experts,
                plus_minus(*mean_and_error(_values(method, "rating_loss")), 0),
                rating_loss,
                plus_minus(*mean_and_error(_values(method, "accuracy")), 2),
                accuracy,
                format_overrides(method["tuned"]),
            )
        )
    header = (
        "",
        "loss",
        "paper",
        "DSelect-k, static −",
        "experts",
        "paper",
        "loss of task 2",
        "paper",
        "accuracy of task 1, %",
        "paper",
        "tuned",
    )
    seeds = len(methods[DSELECT_K]["runs"])
    caption = (
        f"Test split; losses times 10⁴; means with standard errors over {seeds} training seeds. Differences are "
        "paired by seed, with 95 % intervals. Experts: mean per task and row."
    )
    return section(f"α = {alpha}", caption, header, rows)


def _values(method: dict[str, Any], key: str) -> list[float]:
    """Return a value of each run: losses times 10⁴, accuracies and steps until binary in percent."""
    if key == "percent":
        return [100 * run["binary_at_step"] / run["steps"] for run in method["runs"]]
    factor = {"loss": 1e4, "rating_loss": 1e4, "accuracy": 100.0}.get(key, 1.0)
    return [factor * run[key] for run in method["runs"]]


def _difference(methods: dict[str, Any], name: str, rival: str) -> tuple[float, float]:
    """Return the mean difference of the test losses and the half-width of its interval."""
    return paired_interval(_values(methods[name], "loss"), _values(methods[rival], "loss"))


def _relative_experts(methods: dict[str, Any]) -> list[float]:
    """Return for each run the experts that DSelect-k ran for a task in training relative to the tuned Top-k."""
    pairs = zip(methods[DSELECT_K]["runs"], methods[TOP_K]["runs"], strict=True)
    return [ours["experts_of_top_k"] * ours["k"] / theirs["k"] for ours, theirs in pairs]


def plot(results: dict[str, Any]) -> Figure:
    """Plot the expert weights of task 1 during the training, for the first seed and the middle α (figure C.7)."""
    alphas = results["alphas"]
    methods = alphas[list(alphas)[len(alphas) // 2]]
    ranks = ("largest at the end", "second", "third", "fourth")
    panels = {}
    for name in (TOP_K, DSELECT_K):
        trajectory = methods[name]["runs"][0]["trajectory"]
        order = np.argsort(trajectory[-1][1])[::-1]
        panels[name] = [(step, [weights[expert] for expert in order]) for step, weights in trajectory]
    figure = expert_weights(panels, dict(enumerate(ranks)))
    for axis in figure.axes:
        axis.locator_params(axis="x", nbins=6)
    return figure


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held for each α."""
    return [claim for alpha, methods in results["alphas"].items() for claim in _claims(alpha, methods)]


def _claims(alpha: str, methods: dict[str, Any]) -> list[tuple[str, Verdict]]:
    losses, experts = ({name: _values(methods[name], key) for name in methods} for key in ("loss", "experts"))
    ours, top_k = (DSELECT_K, DSELECT_K_PER_EXAMPLE), (TOP_K, TOP_K_PER_EXAMPLE)
    others = [name for name in methods if name not in ours]
    return [
        (
            f"α = {alpha}: a DSelect-k gate has a lower test loss than every other method",
            any_of([all_of([is_lower(losses[name], losses[rival]) for rival in others]) for name in ours]),
        ),
        (
            f"α = {alpha}: DSelect-k and Top-k have a lower test loss than softmax",
            all_of([is_lower(losses[name], losses[SOFTMAX]) for name in (*ours, *top_k)]),
        ),
        (
            f"α = {alpha}: DSelect-k selects fewer experts than Top-k, static and per example",
            all_of([is_lower(experts[a], experts[b]) for a, b in zip(ours, top_k, strict=True)]),
        ),
    ]
