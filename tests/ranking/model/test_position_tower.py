"""Position tower: added to the outputs in training, replaced by its mean in eval mode and when frozen."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.model.position_tower import MOMENTUM, PositionTower
from ranking.schema import Schema
from ranking.settings.model import PositionTowerConfig
from tests.support.one_model import weights_of

SCHEMA = Schema.model_validate(
    {
        "name": "position",
        "features": [
            {"name": "position", "kind": "categorical", "owner": "context", "dim": 3, "training_only": True},
            {"name": "slots", "kind": "bag", "owner": "context", "dim": 2, "training_only": True},
            {"name": "depth", "kind": "numeric", "owner": "context", "training_only": True},
        ],
        "tasks": [{"name": name, "kind": "binary"} for name in "abcd"],
    }
)


def draw_tower_rows(count: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    position = random.integers(5, size=count)
    table = {"position": position, "slots": [[int(p), 7] for p in position], "depth": random.normal(size=count)}
    return fill_features(pa.table(table), SCHEMA, {})


@pytest.fixture
def encoder() -> Encoder:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(draw_tower_rows(200))
    return fitter.encoder()


@pytest.fixture
def inputs(encoder: Encoder) -> TorchBatch:
    return TorchBatch.from_numpy(encoder.encode(draw_tower_rows(100, 1)))


def make_tower(encoder: Encoder, dropout: float = 0.0, *, random_output: bool = False) -> PositionTower:
    """Return a position tower for four tasks; with ``random_output``, its output layer is random instead of 0."""
    embeddings = Embeddings(SCHEMA, {name: mapping.size for name, mapping in encoder.id_mappings.items()})
    config = PositionTowerConfig(features=("position", "slots", "depth"), layers=(8, 6), dropout=dropout)
    tower = PositionTower(config, 4, embeddings, encoder.dense_size)
    if random_output:
        torch.nn.init.normal_(tower.output.weight)
    return tower


def test_position_tower_initial_outputs_are_zero(encoder: Encoder, inputs: TorchBatch) -> None:
    assert torch.equal(make_tower(encoder)(inputs), torch.zeros(100, 4))


def test_position_tower_training_from_zero_reduces_loss(encoder: Encoder, inputs: TorchBatch) -> None:
    tower = make_tower(encoder)
    optimizer = torch.optim.Adam(tower.parameters(), lr=0.01)
    target = inputs.ids.double() - 3
    first = None
    for _ in range(100):
        loss = (tower(inputs) - target).square().mean()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2 * first


def test_position_tower_mean_is_updated_in_training_only(encoder: Encoder, inputs: TorchBatch) -> None:
    tower = make_tower(encoder, random_output=True)
    first = tower(inputs).detach().mean(0)
    torch.testing.assert_close(tower.mean, MOMENTUM * first)
    second = tower(inputs).detach().mean(0)
    expected = (1 - MOMENTUM) * MOMENTUM * first + MOMENTUM * second
    torch.testing.assert_close(tower.mean, expected)
    tower.eval()(inputs)
    torch.testing.assert_close(tower.mean, expected)


def test_position_tower_mean_under_autocast_is_updated_in_float32(encoder: Encoder, inputs: TorchBatch) -> None:
    tower = make_tower(encoder, random_output=True)
    with torch.autocast("cpu", torch.bfloat16):
        added = tower(inputs)
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(tower.mean, MOMENTUM * added.detach().float().mean(0))


def test_position_tower_dropout_hides_whole_features_independently(encoder: Encoder) -> None:
    torch.manual_seed(0)
    visible = make_tower(encoder, dropout=0.3)._visible_mask(4000)
    assert visible.shape == (4000, 3 + 2 + 1)
    masks = [visible[:, :3], visible[:, 3:5], visible[:, 5:]]
    for mask in masks:
        assert torch.equal(mask.all(1), mask.any(1)), "a feature is hidden as a whole"
        assert abs(mask[:, 0].float().mean() - 0.7) < 0.03
    first_columns = torch.stack([mask[:, 0].float() for mask in masks])
    assert torch.corrcoef(first_columns).fill_diagonal_(0).abs().max() < 0.05


def test_position_tower_dropout_is_off_in_eval_mode(encoder: Encoder, inputs: TorchBatch) -> None:
    tower = make_tower(encoder, dropout=0.9, random_output=True).eval()
    assert torch.equal(tower(inputs), tower(inputs))


def test_position_tower_state_dict_excludes_widths(encoder: Encoder) -> None:
    assert {"mean", "output.weight"} <= set(make_tower(encoder).state_dict())
    assert "widths" not in make_tower(encoder).state_dict()


@pytest.fixture
def model(make_model: Callable[[], MMoE], encoder: Encoder) -> MMoE:
    """The hand-made model with a position tower and a correction for a quarter of one task's negatives."""
    model = make_model()
    model.side = make_tower(encoder, random_output=True)
    model.side.mean.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
    model.correction.copy_(torch.tensor([math.log(0.25), 0.0, 0.0, 0.0]))
    return model.eval()


def test_mmoe_freeze_normalization_keeps_the_statistics_of_both_batch_norms(
    model: MMoE,
    hand_encoder: Encoder,
    hand_ranker: FrozenRanker,
    draw_rows: Callable[[int, int], pa.Table],
    inputs: TorchBatch,
) -> None:
    main = TorchBatch.from_numpy(hand_encoder.encode(hand_ranker.complete(draw_rows(100, 3))))
    before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    model.train()
    model.freeze_normalization()
    model(main, inputs)
    assert len(before) == 4
    torch.testing.assert_close({name: model.state_dict()[name] for name in before}, before, rtol=0, atol=0)
    model.train()
    model(main, inputs)
    assert not any(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_mmoe_in_training_adds_position_tower_outputs_and_requires_its_inputs(
    model: MMoE,
    hand_encoder: Encoder,
    hand_ranker: FrozenRanker,
    draw_rows: Callable[[int, int], pa.Table],
    inputs: TorchBatch,
) -> None:
    main = TorchBatch.from_numpy(hand_encoder.encode(hand_ranker.complete(draw_rows(100, 3))))
    plain = copy.deepcopy(model).train()
    plain.side = None
    expected = plain(main) + copy.deepcopy(model.side).train()(inputs)
    torch.testing.assert_close(model.train()(main, inputs), expected)
    with pytest.raises(ValueError, match="needs the tower's inputs in training"):
        model(main)


def test_mmoe_in_eval_mode_adds_position_tower_mean_and_correction(
    model: MMoE,
    make_model: Callable[[], MMoE],
    hand_encoder: Encoder,
    hand_ranker: FrozenRanker,
    draw_rows: Callable[[int, int], pa.Table],
    inputs: TorchBatch,
) -> None:
    main = TorchBatch.from_numpy(hand_encoder.encode(hand_ranker.complete(draw_rows(100, 3))))
    expected = make_model()(main) + torch.tensor([0.5 + math.log(0.25), -1.0, 2.0, 0.0])
    torch.testing.assert_close(model(main), expected)
    assert torch.equal(model(main, inputs), model(main))


def test_frozen_ranker_equals_dense_model_without_position_tower_weights(
    model: MMoE, hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table]
) -> None:
    frozen = freeze(model, hand_ranker.encoder, hand_ranker.tables, {})
    assert weights_of(frozen).keys() == weights_of(hand_ranker).keys()
    completed = hand_ranker.complete(draw_rows(200, 4))
    scores, _ = frozen.score_completed(completed, frozen.schema.tasks)
    inputs = TorchBatch.from_numpy(frozen.encoder.encode(completed))
    with torch.inference_mode():
        outputs = model.double()(replace(inputs, dense=inputs.dense.double()))
    np.testing.assert_allclose(scores, to_probabilities(outputs.numpy(), frozen.schema.tasks), rtol=0.0, atol=1e-5)
