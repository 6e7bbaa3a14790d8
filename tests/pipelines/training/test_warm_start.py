"""Trainings that start from an earlier run on new days."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from pipelines.config.config import Config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.warm_start import WarmStart
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import ConfigError, LogError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

TABLE = "embeddings.collection.embedding_bags.{}.weight"
BUDGET = {"gate": {"experts_budget": 2}}


@pytest.fixture
def earlier(shop: Shop) -> RunFolder:
    """A run on 200 rows with a budget of two of three experts."""
    shop.write(shop.table(200))
    return train(shop.config(model=BUDGET), shop.folder / "earlier")


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


def initialized_model(config: Config, run: RunFolder, earlier: RunFolder, *, reopen: bool) -> Any:
    """Return the model as a warm start initializes it."""
    model = build_model(config, Encoder.read(run.encoder, config.serving_schema))
    WarmStart(earlier, reopen).initialize(model)
    return model.eval()


def test_warm_start_keeps_rows_of_known_ids_and_appends_new_ids(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    run = train_warm(shop.config(model=BUDGET), shop.folder / "run", earlier)
    before, after = (Encoder.read(one.encoder, shop.schema) for one in (earlier, run))
    known, extended = (encoder.id_mappings["user_id"].ids.to_pylist() for encoder in (before, after))
    assert extended[: len(known)] == known
    assert sorted(extended[len(known) :]) == [f"new{i}" for i in range(5)]


def test_warm_start_keeps_numeric_scales(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop, price=pa.array([1e6] * 200))
    run = train_warm(shop.config(model=BUDGET), shop.folder / "run", earlier)
    before, after = (Encoder.read(one.encoder, shop.schema) for one in (earlier, run))
    assert after.scales == before.scales


@pytest.mark.parametrize("reopen", [False, True])
def test_warm_start_initially_scores_like_the_earlier_run(shop: Shop, earlier: RunFolder, reopen: bool) -> None:
    """Rows score as before; rows with new ids score as out-of-vocabulary ids did."""
    old, encoder = load_model(earlier, earlier.load_config())
    new_days(shop)
    config = shop.config(model=BUDGET)
    run = train_warm(config, shop.folder / "run", earlier, reopen=reopen)
    model = initialized_model(config, run, earlier, reopen=reopen)
    (batch,) = shop.reader().scan()
    new_encoder = Encoder.read(run.encoder, shop.schema)
    with torch.no_grad():
        expected = old(TorchBatch.from_numpy(encoder.encode(batch.rows)))
        actual = model(TorchBatch.from_numpy(new_encoder.encode(batch.rows)))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_warm_start_trains_rows_of_new_ids(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    run = train_warm(shop.config(model=BUDGET), shop.folder / "run", earlier)
    before, after = load_file(earlier.best), load_file(run.best)
    table = TABLE.format("user_id")
    grown = after[table][len(before[table]) :]
    assert len(grown) == 5
    assert not any(torch.equal(row, before[table][1]) for row in grown)


def test_warm_start_keeps_the_selection(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    run = train_warm(shop.config(model=BUDGET), shop.folder / "run", earlier)
    before, after = earlier.load_selection(), run.load_selection()
    assert {task: set(chosen) for task, chosen in after["tasks"].items()} == {
        task: set(chosen) for task, chosen in before["tasks"].items()
    }
    assert (after["converged"], after["binary_at_step"], after["snapped_codes"]) == (True, 0, 0)


def test_warm_start_keeps_the_selection_from_the_first_step(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    lines: list[dict[str, Any]] = []
    train_warm(shop.config(model=BUDGET), shop.folder / "run", earlier, on_check=lines.append)
    used = len(earlier.load_selection()["experts_used"])
    assert {(line["phase"], line["experts"]) for line in lines} == {("selected", used)}
    assert lines[0]["best"]


def test_warm_start_with_reopen_selects_again_among_all_experts(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    lines: list[dict[str, Any]] = []
    config = shop.config(model=BUDGET, training={"learning_rate": {"gates": 0.2}, "epochs": 3})
    run = train_warm(config, shop.folder / "run", earlier, reopen=True, on_check=lines.append)
    assert (lines[0]["phase"], lines[0]["experts"]) == ("selecting", 3)
    assert lines[-1]["phase"] == "selected"
    selection = run.load_selection()
    assert selection["converged"]
    assert len(selection["experts_used"]) <= 2


@pytest.mark.parametrize(
    "gate",
    [
        {"kind": "dselect_k", "per_example": True},
        {"kind": "softmax_selectors"},
        {"kind": "gumbel_softmax"},
        {"kind": "top_k"},
        {"kind": "softmax", "per_example": True},
        {"kind": "shared_bottom"},
    ],
    ids=str,
)
@pytest.mark.parametrize("reopen", [False, True])
def test_warm_start_of_every_gate_converges(shop: Shop, gate: dict[str, Any], reopen: bool) -> None:
    shop.write(shop.table(200))
    config = shop.config(model={"gate": gate})
    earlier = train(config, shop.folder / "earlier")
    new_days(shop)
    run = train_warm(config, shop.folder / "run", earlier, reopen=reopen)
    assert load_model(run, config)[0].gate.converged().all()


def test_warm_start_of_a_distilled_gate_rejects_reopen(shop: Shop) -> None:
    shop.write(shop.table(200))
    config = shop.config(model={"gate": {"kind": "attentive"}})
    earlier = train(config, shop.folder / "earlier")
    assert train_warm(config, shop.folder / "run", earlier).finished
    with pytest.raises(ConfigError, match="omit --reopen"):
        train_warm(config, shop.folder / "other", earlier, reopen=True)


def test_warm_start_resumed_gives_the_same_weights_as_uninterrupted(shop: Shop, earlier: RunFolder) -> None:
    new_days(shop)
    config = shop.config(model=BUDGET)
    whole = train_warm(config, shop.folder / "whole", earlier)
    seen: list[dict[str, Any]] = []

    def stop(line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == 3:
            raise LogError("enough")

    with pytest.raises(LogError, match="enough"):
        train_warm(config, shop.folder / "run", earlier, on_check=stop)
    run = train_warm(config, shop.folder / "run", earlier, resume=True)
    one, other = load_file(whole.best), load_file(run.best)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("sections", "named"), [({"model": {"experts": 4}}, "[model]"), ({"model": {"tower_layers": [5]}}, "[model]")]
)
def test_warm_start_with_another_model_raises_a_config_error(
    shop: Shop, earlier: RunFolder, sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train_warm(shop.config(**sections), shop.folder / "run", earlier)
    assert named in str(caught.value)
    assert not (shop.folder / "run").exists()


def test_warm_start_with_other_features_raises_a_config_error(shop: Shop, earlier: RunFolder) -> None:
    config = shop.config(model=BUDGET)
    with pytest.raises(ConfigError, match=r"\[features\] differs from that of .*train from scratch"):
        train_warm(config.model_copy(update={"features": config.features[1:]}), shop.folder / "run", earlier)


def test_warm_start_with_hashed_ids_accepts_another_id_type(shop: Shop, earlier: RunFolder) -> None:
    shop.write(shop.table(200))
    config = shop.config(model=BUDGET)
    table = shop.table(200)
    shop.write(table.set_column(table.column_names.index("tab"), "tab", pa.array(["x"] * 200)))
    assert train_warm(config, shop.folder / "hashed", earlier).finished  # hashing accepts both types


def test_warm_start_with_strings_instead_of_integers_raises_a_log_error(shop: Shop) -> None:
    table = shop.table(200)
    numbers = pa.array(range(200), pa.int64())
    shop.write(table.set_column(table.column_names.index("item_id"), "item_id", numbers))
    earlier = train(shop.config(), shop.folder / "earlier")
    shop.write(shop.table(200))
    with pytest.raises(LogError, match="type of ids differs from the earlier run"):
        train_warm(shop.config(), shop.folder / "run", earlier)
