"""Trainings that start from an earlier run on new days."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.config.config import Config, ConvergenceConfig
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import prepare_run, train
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import load_best, load_optimizers
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.warm_start import WarmStart, extend_encoder, limit_batch_size
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import write_json
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import ConfigError, LogError
from ranking.frozen.calibration import Calibration, Platt
from ranking.schema import NumericFeature
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import DAYS, FIRST_DAY, Shop

if TYPE_CHECKING:
    from tests.conftest import Once

TABLE = "embeddings.collection.embedding_bags.{}.weight"
BUDGET = {"gate": {"experts_budget": 2}}
SECTIONS: dict[str, Any] = {
    "model": BUDGET,
    "tasks": [RAW_SCHEMA["tasks"][0] | {"calibration": "platt"}, RAW_SCHEMA["tasks"][1]],
}
"""Sections of the shared earlier run; its 20 validation rows are too few for a calibration."""
EVERY_STEP = {"checks_per_epoch": 1000}
ONE_CHECK = {"checks_per_epoch": 1}
NO_TEST_ROWS = {"test_from": FIRST_DAY + timedelta(days=DAYS)}
"""Splits of a log without rows for testing, on which a run is not evaluated."""


@pytest.fixture(scope="module")
def shared_earlier(once: Once) -> RunFolder:
    """A run on 200 rows with a budget of two of three experts; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        shop.write(shop.table(200))
        train(shop.config(**SECTIONS), folder / "run")

    return RunFolder.open(once("earlier run of warm starts", make) / "run")


@pytest.fixture
def earlier(shop: Shop, shared_earlier: RunFolder) -> RunFolder:
    """A copy of the shared run on the log of the shop; a test may change both."""
    shop.write(shop.table(200))
    return RunFolder.open(shutil.copytree(shared_earlier.path, shop.folder / "earlier"))


@pytest.fixture(scope="module")
def warm(shared_earlier: RunFolder, once: Once) -> RunFolder:
    """A run on new days, with a check after every step, that starts from the shared earlier run; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        new_days(shop)
        train_warm(shop.config(**SECTIONS, training=EVERY_STEP), folder / "run", shared_earlier)

    return RunFolder.open(once("warm start", make) / "run")


@pytest.fixture(scope="module")
def shifted(shared_earlier: RunFolder, once: Once) -> RunFolder:
    """Like ``warm``, on rows with a high price, one tab and watch times that are easy to improve; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        seconds = pa.array([2000.0 + row % 7 for row in range(200)])  # longer than before
        new_days(shop, price=pa.array([1e6] * 200), tab=pa.array([3] * 200), seconds=seconds)
        train_warm(shop.config(**SECTIONS), folder / "run", shared_earlier)

    return RunFolder.open(once("warm start on shifted rows", make) / "run")


@pytest.fixture(scope="module")
def reopened(shared_earlier: RunFolder, once: Once) -> RunFolder:
    """Like ``warm``, with gates that select again in three epochs; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        new_days(shop)
        config = shop.config(**SECTIONS, training={"learning_rate": {"gates": 0.2}, "epochs": 3})
        train_warm(config, folder / "run", shared_earlier, reopen=True)

    return RunFolder.open(once("warm start that reopens", make) / "run")


def new_days(shop: Shop, **replacements: pa.Array) -> None:
    """Write a log of other days with users that the earlier run has not seen."""
    table = shop.table(200, seed=1)
    users = [user if row % 3 else f"new{row % 5}" for row, user in enumerate(table["user_id"].to_pylist())]
    columns: dict[str, Any] = {"user_id": pa.array(users), **replacements}
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    shop.write(table)


def train_warm(config: Config, folder: Path, earlier: RunFolder, *, reopen: bool = False, **options: Any) -> RunFolder:
    return train(config, folder, warm_start=WarmStart(earlier, reopen), **options)


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def initialized_model(config: Config, run: RunFolder, earlier: RunFolder, *, reopen: bool) -> Any:
    """Return the model as a warm start initializes it."""
    model = build_model(config, Encoder.read(run.encoder, config.serving_schema))
    EmbeddingTables(model.embeddings, 0.1, 64, DistContext(), 0, WarmStart(earlier, reopen).initialize(model))
    return model.eval()


def test_warm_start_keeps_rows_of_known_ids_and_appends_new_ids(
    shop: Shop, shared_earlier: RunFolder, warm: RunFolder
) -> None:
    before, after = (Encoder.read(one.encoder, shop.schema) for one in (shared_earlier, warm))
    known, extended = (encoder.id_mappings["user_id"].ids().to_pylist() for encoder in (before, after))
    assert extended[: len(known)] == known
    assert sorted(extended[len(known) :]) == [f"new{i}" for i in range(5)]


def test_warm_start_keeps_numeric_scales(shop: Shop, shared_earlier: RunFolder, shifted: RunFolder) -> None:
    before, after = (Encoder.read(one.encoder, shop.schema) for one in (shared_earlier, shifted))
    assert after.scales == before.scales


def test_warm_start_keeps_the_statistics_of_batch_norm(shared_earlier: RunFolder, shifted: RunFolder) -> None:
    """A feature that is constant in the new rows would otherwise get a variance near 0."""
    before, after = load_file(shared_earlier.best), load_file(shifted.best)
    assert not torch.equal(after["norm.weight"], before["norm.weight"]), "training changed the weights"
    torch.testing.assert_close(after["norm.running_mean"], before["norm.running_mean"], rtol=0, atol=0)
    torch.testing.assert_close(after["norm.running_var"], before["norm.running_var"], rtol=0, atol=0)


@pytest.mark.parametrize("reopen", [False, True])
def test_warm_start_initially_scores_like_the_earlier_run(
    shop: Shop, shared_earlier: RunFolder, warm: RunFolder, reopened: RunFolder, reopen: bool
) -> None:
    """Rows score as before; rows with new ids score as out-of-vocabulary ids did."""
    old, encoder = load_model(shared_earlier, shared_earlier.load_config())
    run = reopened if reopen else warm
    model = initialized_model(run.load_config(), run, shared_earlier, reopen=reopen)
    new_days(shop)
    (batch,) = shop.reader().scan()
    new_encoder = Encoder.read(run.encoder, shop.schema)
    with torch.no_grad():
        expected = old(TorchBatch.from_numpy(encoder.encode(batch.rows)))
        actual = model(TorchBatch.from_numpy(new_encoder.encode(batch.rows)))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_warm_start_of_a_run_with_a_damaged_vocabulary_raises_a_log_error(shop: Shop, earlier: RunFolder) -> None:
    (earlier.encoder / "vocabularies" / "user_id.parquet").write_bytes(b"x")
    with pytest.raises(LogError, match=f"^{earlier.encoder}: is damaged .*; train the earlier run again$"):
        train_warm(shop.config(**SECTIONS), shop.folder / "run", earlier)


def test_warm_start_of_a_run_without_a_vocabulary_raises_a_log_error(shop: Shop, earlier: RunFolder) -> None:
    missing = earlier.encoder / "vocabularies" / "user_id.parquet"
    missing.unlink()
    with pytest.raises(LogError, match=f"^{earlier.encoder}: cannot be read .*{missing}"):
        train_warm(shop.config(**SECTIONS), shop.folder / "run", earlier)


@pytest.mark.parametrize("reopen", [False, True])
def test_warm_start_of_a_run_with_damaged_weights_raises_a_log_error(
    shop: Shop, earlier: RunFolder, reopen: bool
) -> None:
    earlier.best.write_bytes(earlier.best.read_bytes()[:1000])
    with pytest.raises(LogError, match=f"^{earlier.path}: the run is damaged or of another version .*; train again$"):
        train_warm(shop.config(**SECTIONS), shop.folder / "run", earlier, reopen=reopen)


def test_warm_start_trains_rows_of_new_ids(shared_earlier: RunFolder, warm: RunFolder) -> None:
    before, after = load_file(shared_earlier.best), load_file(warm.best)
    table = TABLE.format("user_id")
    grown = after[table][len(before[table]) :]
    assert len(grown) == 5
    assert not any(torch.equal(row, before[table][1]) for row in grown)


def test_warm_start_keeps_the_selection(shared_earlier: RunFolder, warm: RunFolder) -> None:
    before, after = shared_earlier.load_selection(), warm.load_selection()
    assert {task: set(chosen) for task, chosen in after["tasks"].items()} == {
        task: set(chosen) for task, chosen in before["tasks"].items()
    }
    assert (after["converged"], after["binary_at_step"], after["snapped_codes"]) == (True, 0, 0)


def test_warm_start_keeps_the_selection_from_the_first_step(shared_earlier: RunFolder, warm: RunFolder) -> None:
    used = len(shared_earlier.load_selection()["experts_used"])
    assert {(line["phase"], line["experts"]) for line in metrics(warm)} == {("selected", used)}


def test_warm_start_continues_with_the_state_of_the_optimizers(shared_earlier: RunFolder, shifted: RunFolder) -> None:
    """Without it, each weight and each row of a table takes a first step as large as the learning rate."""
    before, after = load_optimizers(shared_earlier), load_optimizers(shifted)
    best = max((line["step"] for line in metrics(shifted) if line["best"]), default=0)
    assert best > 0
    step = "optimiser.model.towers.layers.0.weight.step"
    assert float(after[step]) == float(before[step]) + best
    known, sums = before["adagrad.user_id"], after["adagrad.user_id"]
    assert bool((sums[: len(known)] >= known).all())
    new = sums[len(known) :]
    assert len(new) == 5
    assert bool((new > known[known > 0].mean()).all())


def test_warm_start_of_a_run_without_optimizer_state_trains(shop: Shop, earlier: RunFolder) -> None:
    """Version 0.1.0 did not save it."""
    save_file(load_best(earlier), earlier.best)
    assert load_optimizers(earlier) == {}
    new_days(shop)
    config = shop.config(**SECTIONS, training=ONE_CHECK, logs=NO_TEST_ROWS)
    assert train_warm(config, shop.folder / "run", earlier).finished


@pytest.mark.parametrize(
    ("rows", "earlier_rows", "rate"),
    [
        pytest.param(100, 100, 1 / 1.4, id="as many rows"),
        pytest.param(100, 1000, 1 / 5, id="a tenth of the rows"),
        pytest.param(100, 100_000, 1 / 13, id="at most 30 times the rows"),
    ],
)
def test_continuation_rate_depends_on_the_share_of_new_rows(
    earlier: RunFolder, rows: int, earlier_rows: int, rate: float
) -> None:
    earlier.selection.write_text(json.dumps(earlier.load_selection() | {"trained_rows": earlier_rows}))
    continuation = WarmStart(earlier, reopen=False).continuation(rows, ConvergenceConfig())
    assert continuation is not None
    assert continuation.rate == pytest.approx(rate)


def test_continuation_of_reopened_gates_is_none(shared_earlier: RunFolder) -> None:
    assert WarmStart(shared_earlier, reopen=True).continuation(100, ConvergenceConfig()) is None


def test_trained_rows_include_those_of_the_earlier_runs(shared_earlier: RunFolder, warm: RunFolder) -> None:
    rows = [json.loads(each.survey.read_text())["rows"]["train"] for each in (shared_earlier, warm)]
    assert shared_earlier.load_selection()["trained_rows"] == rows[0]
    assert warm.load_selection()["trained_rows"] == WarmStart(warm, reopen=False).trained_rows() == sum(rows)


def test_warm_start_learning_rates_fall_linearly_from_the_continuation_rate(
    shared_earlier: RunFolder, warm: RunFolder
) -> None:
    config, lines = warm.load_config(), metrics(warm)
    rows = json.loads(warm.survey.read_text())["rows"]["train"]
    continuation = WarmStart(shared_earlier, reopen=False).continuation(rows, config.training.convergence)
    assert continuation is not None
    peak, steps = continuation.rate * config.training.learning_rate.trunk, len(lines)
    assert [line["learning_rate"] for line in lines] == pytest.approx([peak * (1 - i / steps) for i in range(steps)])


@pytest.mark.parametrize(
    ("batch_size", "rows", "ranks", "expected"),
    [
        pytest.param(512, 10**6, 1, 512, id="many rows"),
        pytest.param(512, 4096, 1, 512, id="exactly eight steps"),
        pytest.param(512, 4095, 1, 256, id="too few steps"),
        pytest.param(512, 72, 1, 32, id="few rows"),
        pytest.param(48, 72, 1, 48, id="no batch below 32 rows"),
        pytest.param(16, 72, 1, 16, id="a smaller configured batch"),
        pytest.param(96, 72, 3, 48, id="a multiple of the ranks"),
        pytest.param(100, 72, 50, 50, id="as many rows as ranks"),
        pytest.param(150, 72, 50, 150, id="not divisible"),
    ],
)
def test_limit_batch_size_gives_at_least_eight_steps(batch_size: int, rows: int, ranks: int, expected: int) -> None:
    assert limit_batch_size(batch_size, rows, ranks) == expected


def test_warm_start_with_few_validation_rows_keeps_the_calibration(
    shop: Shop, earlier: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    platt = Platt(slope=0.8, shift=-0.3)
    write_json(Calibration({"click": platt}).to_json(), earlier.calibration)
    new_days(shop)
    run = train_warm(shop.config(**SECTIONS, training=ONE_CHECK, logs=NO_TEST_ROWS), shop.folder / "run", earlier)
    assert "task 'click': keeps the calibration of the earlier run" in capsys.readouterr().err
    assert run.load_calibration().tasks == {"click": platt}


def test_warm_start_that_only_gets_worse_keeps_the_weights(
    shop: Shop, earlier: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The labels of the training split are inverted, those of the validation split are not."""
    table = shop.table(200)
    clicks = [1 - click if row < 160 else click for row, click in enumerate(table["is_click"].to_pylist())]
    table = table.set_column(table.column_names.index("is_click"), "is_click", pa.array(clicks, pa.int8()))
    shop.write(
        table.set_column(
            table.column_names.index("seconds"),
            "seconds",
            pa.array([5e3 + row if row < 160 else 0.0 for row in range(200)]),
        )
    )
    rates = {"embeddings": 0.3, "trunk": 0.1, "gates": 0.1}
    run = train_warm(shop.config(**SECTIONS, training={"learning_rate": rates}), shop.folder / "run", earlier)
    assert "no step improved the validation loss: the weights of the earlier run are kept" in capsys.readouterr().err
    before, after = load_best(earlier), load_best(run)
    assert all(
        torch.equal(value, after[name][: len(value)] if value.dim() else after[name]) for name, value in before.items()
    )


def test_warm_start_with_reopen_selects_again_among_all_experts(reopened: RunFolder) -> None:
    lines = metrics(reopened)
    assert (lines[0]["phase"], lines[0]["experts"]) == ("selecting", 3)
    assert lines[-1]["phase"] == "selected"
    selection = reopened.load_selection()
    assert selection["converged"]
    assert len(selection["experts_used"]) <= 2


@pytest.mark.parametrize(
    "gate",
    [
        {"kind": "dselect_k", "per_example": True},
        pytest.param({"kind": "softmax_selectors"}, marks=pytest.mark.nightly),
        pytest.param({"kind": "gumbel_softmax"}, marks=pytest.mark.nightly),
        pytest.param({"kind": "top_k"}, marks=pytest.mark.nightly),
        {"kind": "softmax", "per_example": True},
        pytest.param({"kind": "shared_bottom"}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_warm_start_of_every_gate_converges(shop: Shop, gate: dict[str, Any]) -> None:
    shop.write(shop.table(200))
    config = shop.config(model={"gate": gate}, training=ONE_CHECK, logs=NO_TEST_ROWS)
    earlier = train(config, shop.folder / "earlier")
    new_days(shop)
    for reopen in (False, True):
        run = train_warm(config, shop.folder / f"run-{reopen}", earlier, reopen=reopen)
        assert load_model(run, config)[0].gate.converged().all()


@pytest.fixture(scope="module", params=[pytest.param("scaled", marks=pytest.mark.nightly), "side_by_side"])
def earlier_with_reading(request: pytest.FixtureRequest, once: Once) -> tuple[str, RunFolder, Path]:
    """A reading, and a run with it and its bundle; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        shop.write(shop.table(200))
        config = shop.config(model={**BUDGET, "reading": request.param}, training=ONE_CHECK, logs=NO_TEST_ROWS)
        run = train(config, folder / "run")
        freeze_run(run.path, folder / "bundle")  # compares the scores of the bundle with those of the run

    folder = once(f"earlier run of warm starts with reading {request.param}", make)
    return request.param, RunFolder.open(folder / "run"), folder / "bundle"


@pytest.mark.parametrize("reopen", [False, True])
def test_warm_start_of_every_reading_starts_with_the_weights_of_the_earlier_run(
    shop: Shop, earlier_with_reading: tuple[str, RunFolder, Path], reopen: bool
) -> None:
    reading, earlier, frozen = earlier_with_reading
    config = shop.config(model={**BUDGET, "reading": reading}, training=ONE_CHECK, logs=NO_TEST_ROWS)
    assert bundle.load(frozen).selection.reading == reading
    before = load_model(earlier, config)[0]
    model = initialized_model(config, earlier, earlier, reopen=reopen)
    positions = model.positions(before.active.tolist())
    (name,) = (name for name in dict(before.named_parameters()) if name in ("reading.scale", "reading.blocks"))
    assert torch.equal(dict(model.named_parameters())[name][positions], dict(before.named_parameters())[name])
    new_days(shop)
    run = train_warm(config, shop.folder / "run", earlier, reopen=reopen)
    assert load_model(run, config)[0].gate.converged().all()


def test_warm_start_of_a_distilled_gate_rejects_reopen(shop: Shop) -> None:
    shop.write(shop.table(200))
    config = shop.config(model={"gate": {"kind": "attentive"}}, training=ONE_CHECK, logs=NO_TEST_ROWS)
    earlier = train(config, shop.folder / "earlier")
    assert train_warm(config, shop.folder / "run", earlier).finished
    with pytest.raises(ConfigError, match="omit --reopen"):
        train_warm(config, shop.folder / "other", earlier, reopen=True)


def resume_warm(config: Config, folder: Path, earlier: RunFolder) -> RunFolder:
    """Warm-start a training, interrupt it at its third check, and resume it."""
    seen: list[dict[str, Any]] = []

    def stop(line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == 3:
            raise LogError("enough")

    with pytest.raises(LogError, match="enough"):
        train_warm(config, folder, earlier, on_check=stop)
    return train_warm(config, folder, earlier, resume=True)


def assert_equal_weights(one: RunFolder, other: RunFolder) -> None:
    weights, other_weights = load_file(one.best), load_file(other.best)
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())


def test_warm_start_resumed_gives_the_same_weights_as_uninterrupted(
    shop: Shop, shared_earlier: RunFolder, warm: RunFolder
) -> None:
    new_days(shop)
    run = resume_warm(shop.config(**SECTIONS, training=EVERY_STEP), shop.folder / "run", shared_earlier)
    assert_equal_weights(warm, run)


def test_warm_start_of_a_distilled_gate_resumed_trains_the_experts_like_uninterrupted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.training.checkpoint.MAX_TIME_FRACTION", math.inf)  # a checkpoint at each check
    shop.write(shop.table(200))
    attentive = {"gate": {"kind": "attentive"}}
    earlier = train(shop.config(model=attentive, training=ONE_CHECK, logs=NO_TEST_ROWS), shop.folder / "earlier")
    new_days(shop)
    config = shop.config(model=attentive, training=EVERY_STEP)
    warm = train_warm(config, shop.folder / "warm", earlier)
    assert not torch.equal(*(load_file(run.best)["experts.layers.0.weight"] for run in (earlier, warm)))
    assert_equal_weights(warm, resume_warm(config, shop.folder / "run", earlier))


@pytest.mark.parametrize(
    ("sections", "named"), [({"model": {"experts": 4}}, "[model]"), ({"model": {"tower_layers": [5]}}, "[model]")]
)
def test_warm_start_with_another_model_raises_a_config_error(
    shop: Shop, earlier: RunFolder, sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train_warm(shop.config(**SECTIONS | sections), shop.folder / "run", earlier)
    assert named in str(caught.value)
    assert not (shop.folder / "run").exists()


def test_warm_start_with_other_features_raises_a_config_error(shop: Shop, earlier: RunFolder) -> None:
    config = shop.config(**SECTIONS)
    with pytest.raises(ConfigError, match=r"\[features\] differs from that of .*: features\.\w+ is null, .*scratch"):
        train_warm(config.model_copy(update={"features": config.features[1:]}), shop.folder / "run", earlier)


def test_warm_start_with_features_in_another_order_raises_a_config_error(shop: Shop, earlier: RunFolder) -> None:
    config = shop.config(**SECTIONS)
    swapped = config.model_copy(update={"features": config.features[::-1]})
    with pytest.raises(ConfigError, match=r"\[features\] differs from that of .*scratch"):
        train_warm(swapped, shop.folder / "run", earlier)


def test_warm_start_from_a_run_without_bins_has_none(shop: Shop, earlier: RunFolder) -> None:
    fitted = Encoder.read(earlier.encoder, shop.schema)
    before = Encoder(
        fitted.schema.model_copy(
            update={
                "features": tuple(
                    f.model_copy(update={"bins": 0}) if isinstance(f, NumericFeature) else f
                    for f in fitted.schema.features
                )
            }
        ),
        fitted.id_mappings,
        {name: replace(scale, edges=()) for name, scale in fitted.scales.items()},
    )
    extended = extend_encoder(before, fitted)
    assert len(fitted.bins) > 0
    assert len(extended.bins) == 0
    assert {number.bins for number in extended.schema.numerics} == {0}


def test_warm_start_with_hashed_ids_accepts_another_id_type(shop: Shop, shared_earlier: RunFolder) -> None:
    config = shop.config(**SECTIONS, training=ONE_CHECK, logs=NO_TEST_ROWS)
    table = shop.table(200)
    shop.write(table.set_column(table.column_names.index("tab"), "tab", pa.array(["x"] * 200)))
    assert train_warm(config, shop.folder / "hashed", shared_earlier).finished  # hashing accepts both types


def test_warm_start_with_strings_instead_of_integers_raises_a_log_error(shop: Shop) -> None:
    table = shop.table(200)
    numbers = pa.array(range(200), pa.int64())
    shop.write(table.set_column(table.column_names.index("item_id"), "item_id", numbers))
    earlier = prepare_run(shop.config(), shop.folder / "earlier")
    shop.write(shop.table(200))
    with pytest.raises(LogError, match="type of ids differs from the earlier run"):
        train_warm(shop.config(), shop.folder / "run", earlier)
