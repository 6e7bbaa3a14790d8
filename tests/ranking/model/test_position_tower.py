"""The side tower: what it adds in training, its mean in its place afterwards, and nothing of it in the frozen graph."""

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
from ranking.model.position_tower import MOMENTUM, PositionTower, PositionTowerConfig
from ranking.schema import Schema

SIDE = Schema.model_validate(
    {
        "name": "side",
        "features": [
            {"name": "position", "kind": "categorical", "owner": "context", "dim": 3, "training_only": True},
            {"name": "slots", "kind": "bag", "owner": "context", "dim": 2, "training_only": True},
            {"name": "depth", "kind": "numeric", "owner": "context", "training_only": True},
        ],
        "tasks": [{"name": name, "kind": "binary"} for name in "abcd"],
    }
)


def rows(count: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    position = random.integers(5, size=count)
    table = {"position": position, "slots": [[int(p), 7] for p in position], "depth": random.normal(size=count)}
    return fill_features(pa.table(table), SIDE, {})


@pytest.fixture
def encoder() -> Encoder:
    fitter = EncoderFitter(SIDE)
    fitter.add(rows(200))
    return fitter.encoder()


@pytest.fixture
def inputs(encoder: Encoder) -> TorchBatch:
    return TorchBatch.from_numpy(encoder.encode(rows(100, 1)))


def tower(encoder: Encoder, dropout: float = 0.0, *, started: bool = False) -> PositionTower:
    """A side tower of four tasks; ``started``: with an output layer that is no longer 0."""
    embeddings = Embeddings(SIDE, {name: space.size for name, space in encoder.id_mappings.items()})
    config = PositionTowerConfig(features=("position", "slots", "depth"), layers=(8, 6), dropout=dropout)
    side = PositionTower(config, 4, embeddings, encoder.dense_size)
    if started:
        torch.nn.init.normal_(side.output.weight)
    return side


def test_it_adds_nothing_before_it_has_learnt(encoder: Encoder, inputs: TorchBatch) -> None:
    assert torch.equal(tower(encoder)(inputs), torch.zeros(100, 4))


def test_it_learns_from_there(encoder: Encoder, inputs: TorchBatch) -> None:
    side = tower(encoder)
    optimiser = torch.optim.Adam(side.parameters(), lr=0.01)
    target = inputs.ids.double() - 3
    first = None
    for _ in range(100):
        loss = (side(inputs) - target).square().mean()
        first = first or loss.item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.2 * first


def test_the_mean_runs_in_training_and_stands_still_in_eval_mode(encoder: Encoder, inputs: TorchBatch) -> None:
    side = tower(encoder, started=True)
    first = side(inputs).detach().mean(0)
    torch.testing.assert_close(side.mean, MOMENTUM * first)
    second = side(inputs).detach().mean(0)
    expected = (1 - MOMENTUM) * MOMENTUM * first + MOMENTUM * second
    torch.testing.assert_close(side.mean, expected)
    side.eval()(inputs)
    torch.testing.assert_close(side.mean, expected)


def test_the_mean_runs_in_full_precision_under_autocast(encoder: Encoder, inputs: TorchBatch) -> None:
    side = tower(encoder, started=True)
    with torch.autocast("cpu", torch.bfloat16):
        added = side(inputs)
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(side.mean, MOMENTUM * added.detach().float().mean(0))


def test_dropout_hides_whole_features_of_some_rows(encoder: Encoder) -> None:
    torch.manual_seed(0)
    seen = tower(encoder, dropout=0.3)._visible_mask(4000)
    assert seen.shape == (4000, 3 + 2 + 1)
    parts = [seen[:, :3], seen[:, 3:5], seen[:, 5:]]
    for part in parts:
        assert torch.equal(part.all(1), part.any(1)), "a feature is hidden as a whole"
        assert abs(part[:, 0].float().mean() - 0.7) < 0.03
    together = torch.stack([part[:, 0].float() for part in parts])
    assert torch.corrcoef(together).fill_diagonal_(0).abs().max() < 0.05


def test_nothing_is_hidden_in_eval_mode(encoder: Encoder, inputs: TorchBatch) -> None:
    side = tower(encoder, dropout=0.9, started=True).eval()
    assert torch.equal(side(inputs), side(inputs))


def test_its_state_has_no_part_that_the_configuration_gives(encoder: Encoder) -> None:
    assert {"mean", "output.weight"} <= set(tower(encoder).state_dict())
    assert "widths" not in tower(encoder).state_dict()


@pytest.fixture
def model(make_model: Callable[[], MMoE], encoder: Encoder) -> MMoE:
    """The hand-made model, which trained beside a side tower and on a quarter of one task's negatives."""
    model = make_model()
    model.side = tower(encoder, started=True)
    model.side.mean.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
    model.correction.copy_(torch.tensor([math.log(0.25), 0.0, 0.0, 0.0]))
    return model.eval()


def test_in_training_its_output_is_added(
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


def test_in_eval_mode_its_mean_and_the_correction_are_added(
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


def test_frozen_is_dense_and_holds_nothing_of_it(
    model: MMoE, hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table]
) -> None:
    frozen = freeze(model, hand_ranker.encoder, hand_ranker.tables, {})
    assert frozen.weights.keys() == hand_ranker.weights.keys()
    completed = hand_ranker.complete(draw_rows(200, 4))
    found, _ = frozen.score_completed(completed, frozen.schema.tasks)
    inputs = TorchBatch.from_numpy(frozen.encoder.encode(completed))
    with torch.inference_mode():
        outputs = model.double()(replace(inputs, dense=inputs.dense.double()))
    np.testing.assert_allclose(found, to_probabilities(outputs.numpy(), frozen.schema.tasks), rtol=0.0, atol=1e-5)
