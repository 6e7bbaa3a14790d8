"""Trainings that go on from an earlier run on new days."""

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
    """A run on 200 rows of a shop with a budget of two of three experts."""
    shop.write(shop.table(200))
    return train(shop.config(model=BUDGET), shop.folder / "earlier")


def new_days(shop: Shop, **replaced: pa.Array) -> None:
    """The log of other days, in which there are users and items that the earlier run never saw."""
    table = shop.table(200, seed=1)
    users = [user if row % 3 else f"new{row % 5}" for row, user in enumerate(table["user_id"].to_pylist())]
    columns: dict[str, Any] = {"user_id": pa.array(users), **replaced}
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    shop.write(table)


def warmly(config: Config, folder: Path, earlier: RunFolder, *, reopened: bool = False, **how: Any) -> RunFolder:
    return train(config, folder, warm_start=WarmStart(earlier, reopened), **how)


def filled(config: Config, run: RunFolder, earlier: RunFolder, *, reopened: bool) -> Any:
    """The model as a warm start begins."""
    model = build_model(config, Encoder.read(run.encoder, config.serving_schema))
    WarmStart(earlier, reopened).initialize(model)
    return model.eval()


class TestEncoder:
    def test_keeps_the_rows_of_known_ids_and_appends_new_ones(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        run = warmly(shop.config(model=BUDGET), shop.folder / "run", earlier)
        before, after = (Encoder.read(one.encoder, shop.schema) for one in (earlier, run))
        known, extended = (encoder.id_mappings["user_id"].ids.to_pylist() for encoder in (before, after))
        assert extended[: len(known)] == known
        assert sorted(extended[len(known) :]) == [f"new{i}" for i in range(5)]

    def test_keeps_the_scales_of_numbers(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop, price=pa.array([1e6] * 200))
        run = warmly(shop.config(model=BUDGET), shop.folder / "run", earlier)
        before, after = (Encoder.read(one.encoder, shop.schema) for one in (earlier, run))
        assert after.scales == before.scales


class TestWeights:
    @pytest.mark.parametrize("reopened", [False, True])
    def test_begin_where_the_earlier_run_ended(self, shop: Shop, earlier: RunFolder, reopened: bool) -> None:
        """Every row scores as before, those of new ids as the unseen one did."""
        old, encoder = load_model(earlier, earlier.load_config())
        new_days(shop)
        config = shop.config(model=BUDGET)
        run = warmly(config, shop.folder / "run", earlier, reopened=reopened)
        model = filled(config, run, earlier, reopened=reopened)
        (batch,) = shop.reader().scan()
        new_encoder = Encoder.read(run.encoder, shop.schema)
        with torch.no_grad():
            expected = old(TorchBatch.from_numpy(encoder.encode(batch.rows)))
            found = model(TorchBatch.from_numpy(new_encoder.encode(batch.rows)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def test_of_new_ids_learn(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        run = warmly(shop.config(model=BUDGET), shop.folder / "run", earlier)
        before, after = load_file(earlier.best), load_file(run.best)
        table = TABLE.format("user_id")
        grown = after[table][len(before[table]) :]
        assert len(grown) == 5
        assert not any(torch.equal(row, before[table][1]) for row in grown)


class TestSelection:
    def test_is_kept(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        run = warmly(shop.config(model=BUDGET), shop.folder / "run", earlier)
        before, after = earlier.load_selection(), run.load_selection()
        assert {task: set(chosen) for task, chosen in after["tasks"].items()} == {
            task: set(chosen) for task, chosen in before["tasks"].items()
        }
        assert (after["converged"], after["binary_at_step"], after["snapped_codes"]) == (True, 0, 0)

    def test_is_kept_from_the_first_step_on(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        lines: list[dict[str, Any]] = []
        warmly(shop.config(model=BUDGET), shop.folder / "run", earlier, on_check=lines.append)
        used = len(earlier.load_selection()["experts_used"])
        assert {(line["phase"], line["experts"]) for line in lines} == {("selected", used)}
        assert lines[0]["best"]

    def test_may_be_reopened_among_all_experts(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        lines: list[dict[str, Any]] = []
        config = shop.config(model=BUDGET, training={"learning_rate": {"gates": 0.2}, "epochs": 3})
        run = warmly(config, shop.folder / "run", earlier, reopened=True, on_check=lines.append)
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
    @pytest.mark.parametrize("reopened", [False, True])
    def test_of_every_gate_is_kept_or_reopened(self, shop: Shop, gate: dict[str, Any], reopened: bool) -> None:
        shop.write(shop.table(200))
        config = shop.config(model={"gate": gate})
        earlier = train(config, shop.folder / "earlier")
        new_days(shop)
        run = warmly(config, shop.folder / "run", earlier, reopened=reopened)
        assert load_model(run, config)[0].gate.converged().all()

    def test_of_a_distilled_gate_is_kept_and_never_reopened(self, shop: Shop) -> None:
        shop.write(shop.table(200))
        config = shop.config(model={"gate": {"kind": "attentive"}})
        earlier = train(config, shop.folder / "earlier")
        assert warmly(config, shop.folder / "run", earlier).finished
        with pytest.raises(ConfigError, match="omit --reopen"):
            warmly(config, shop.folder / "other", earlier, reopened=True)


class TestResuming:
    def test_gives_the_same_weights_as_never_stopping(self, shop: Shop, earlier: RunFolder) -> None:
        new_days(shop)
        config = shop.config(model=BUDGET)
        whole = warmly(config, shop.folder / "whole", earlier)
        seen: list[dict[str, Any]] = []

        def stop(line: dict[str, Any]) -> None:
            seen.append(line)
            if len(seen) == 3:
                raise LogError("enough")

        with pytest.raises(LogError, match="enough"):
            warmly(config, shop.folder / "run", earlier, on_check=stop)
        run = warmly(config, shop.folder / "run", earlier, resume=True)
        one, other = load_file(whole.best), load_file(run.best)
        assert all(torch.equal(value, other[name]) for name, value in one.items())


class TestRefuses:
    @pytest.mark.parametrize(
        ("sections", "named"),
        [
            ({"model": {"experts": 4}}, "[model]"),
            ({"model": {"tower_layers": [5]}}, "[model]"),
        ],
    )
    def test_another_model(self, shop: Shop, earlier: RunFolder, sections: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError) as caught:
            warmly(shop.config(**sections), shop.folder / "run", earlier)
        assert named in str(caught.value)
        assert not (shop.folder / "run").exists()

    def test_another_feature(self, shop: Shop, earlier: RunFolder) -> None:
        config = shop.config(model=BUDGET)
        with pytest.raises(ConfigError, match=r"\[features\] differs from that of .*train from scratch"):
            warmly(config.model_copy(update={"features": config.features[1:]}), shop.folder / "run", earlier)

    def test_ids_of_another_type(self, shop: Shop, earlier: RunFolder) -> None:
        shop.write(shop.table(200))
        config = shop.config(model=BUDGET)
        table = shop.table(200)
        shop.write(table.set_column(table.column_names.index("tab"), "tab", pa.array(["x"] * 200)))
        assert warmly(config, shop.folder / "hashed", earlier).finished  # hashes take both

    def test_text_where_integers_were(self, shop: Shop) -> None:
        table = shop.table(200)
        numbers = pa.array(range(200), pa.int64())
        shop.write(table.set_column(table.column_names.index("item_id"), "item_id", numbers))
        earlier = train(shop.config(), shop.folder / "earlier")
        shop.write(shop.table(200))
        with pytest.raises(LogError, match="type of ids differs from the earlier run"):
            warmly(shop.config(), shop.folder / "run", earlier)
