"""Hidden ids: as many become OOV as the rates say, by seed and step only, and histories lose some of their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.config.config import TrainingConfig
from pipelines.jobs.train import prepare_run
from pipelines.training.id_dropout import IdDropout, unknown_shares
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import Bucketizer, HashBuckets, Vocabulary
from ranking.schema import Schema
from tests.pipelines.conftest import Shop

SCHEMA = Schema.model_validate(
    {
        "name": "small",
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "shop", "kind": "categorical", "owner": "item", "hash_buckets": 9},
            {"name": "band", "kind": "buckets", "owner": "user", "boundaries": [1.0]},
            {"name": "user_shop", "kind": "cross", "of": ["user_id", "shop"], "hash_buckets": 1000},
            {"name": "tags", "kind": "bag", "owner": "item"},
        ],
        "histories": [{"of": "item_id", "label": "click", "name": "recent"}],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)
KNOWN = [10, 20, 30, 40]
ENCODER = Encoder(
    SCHEMA,
    {
        "user_id": Vocabulary(pa.array(KNOWN)),
        "item_id": Vocabulary(pa.array(KNOWN)),
        "shop": HashBuckets(9),
        "band": Bucketizer(np.array([1.0])),
        "user_shop": HashBuckets(1000),
        "tags": Vocabulary(pa.array(KNOWN)),
    },
    {},
)
ROWS = 4000
SHARES = {"user_id": 0.3, "item_id": 0.001, "tags": 0.25, "recent": 0.0}


def batch() -> LabeledBatch:
    """Rows with known ids, of which every tenth is missing; lists of three ids, or of the mark of a missing list."""
    ids = np.full((ROWS, 5), 3)
    ids[::10] = MISSING
    lengths = np.full(ROWS, 3)
    lengths[::10] = 1
    values = np.full(lengths.sum(), 3)
    values[np.cumsum(lengths)[::10] - 1] = MISSING
    inputs = EncodedBatch(ids, (RaggedIds(values, lengths),) * 2, np.zeros((ROWS, 0), np.float32), ids[:, :0] < 0)
    return LabeledBatch(inputs, np.zeros((ROWS, 1), np.float32), np.arange(ROWS), np.ones(ROWS, np.float32))


def dropout(**settings: Any) -> IdDropout:
    return IdDropout(ENCODER, SHARES, TrainingConfig.model_validate(settings))


def share(hidden: Any) -> float:
    return float(np.mean(hidden))


def test_ids_become_oov_at_the_measured_share_of_their_feature() -> None:
    before = batch()
    after = dropout()(before, 1).inputs
    columns = after.ids.T
    present = before.inputs.ids[:, 0] != MISSING
    assert share(columns[0][present] == OOV) == pytest.approx(0.3, abs=0.04)
    for column in (1, 2, 3):  # A share below the minimum, a hashed feature and buckets.
        assert np.array_equal(columns[column], before.inputs.ids[:, column])
    tags = after.bags[0]
    assert share(tags.values[tags.values != MISSING] == OOV) == pytest.approx(0.25, abs=0.02)
    assert np.array_equal(tags.lengths, before.inputs.bags[0].lengths)


def test_missing_ids_and_missing_lists_stay_missing() -> None:
    after = dropout(oov_dropout=0.9, history_dropout=0.9)(batch(), 1).inputs
    assert (after.ids[::10] == MISSING).all()
    for bag in after.bags:
        starts = np.cumsum(bag.lengths) - bag.lengths
        assert (bag.values[starts[::10]] == MISSING).all()


def test_cross_of_a_hidden_id_takes_a_random_bucket() -> None:
    after = dropout()(batch(), 1).inputs
    is_hidden = after.ids[:, 0] == OOV
    crosses = after.ids[:, 4]
    assert len(np.unique(crosses[is_hidden])) > 500
    assert crosses[is_hidden].min() >= 1
    assert crosses[is_hidden].max() < ENCODER.id_mappings["user_shop"].size
    assert (crosses[~is_hidden & (crosses != MISSING)] == 3).all()


def test_histories_lose_ids_at_the_rate_of_history_dropout() -> None:
    before = batch().inputs
    tags, recent = dropout(oov_dropout=0.0, history_dropout=0.3)(batch(), 1).inputs.bags
    assert np.array_equal(tags.values, before.bags[0].values), "a bag is not a history"
    assert recent.lengths.sum() == len(recent.values)
    present = before.ids[:, 0] != MISSING
    assert recent.lengths[present].mean() == pytest.approx(2.1, abs=0.06)


def test_draws_depend_on_seed_and_step_only() -> None:
    def ids(seed: int, step: int) -> Any:
        return dropout(seed=seed)(batch(), step).inputs.ids

    assert np.array_equal(ids(1, 5), ids(1, 5))
    assert not np.array_equal(ids(1, 5), ids(1, 6))
    assert not np.array_equal(ids(1, 5), ids(2, 5))


def test_numeric_rate_applies_to_every_vocabulary_and_0_returns_the_batch() -> None:
    assert dropout(oov_dropout=0.1).rates == dict.fromkeys(("item_id", "recent", "tags", "user_id"), 0.1)
    unchanged = batch()
    assert dropout(oov_dropout=0.0, history_dropout=0.0)(unchanged, 1) is unchanged


def test_measured_rate_leaves_some_ids_known() -> None:
    assert IdDropout(ENCODER, {"user_id": 1.0}, TrainingConfig()).rates == {"user_id": 0.3}
    assert dropout(oov_dropout=0.001).rates["user_id"] == 0.001, "the limits are those of measured rates"


def test_batch_is_not_modified() -> None:
    original = batch()
    dropout()(original, 1)
    assert (original.inputs.ids != OOV).all()
    assert (original.inputs.bags[1].lengths == batch().inputs.bags[1].lengths).all()


def test_unknown_shares_are_those_of_the_validation_split(shop: Shop) -> None:
    table = shop.table(200)
    tags = [["red"], ["red", "blue"], None, []] * 50
    users = [f"u{row % 4}" if row < 160 else "new" if row % 4 == 0 else "u1" for row in range(200)]
    for column, values in (("user_id", users), ("tags", pa.array(tags, pa.list_(pa.string())))):
        table = table.set_column(table.column_names.index(column), column, pa.array(values))
    shop.write(table)
    fitter = EncoderFitter(shop.schema)
    first = next(shop.reader().scan()).rows.slice(0, 160)
    names = first.column_names
    fitter.add(first.set_column(names.index("tags"), "tags", pa.array([["red"]] * 160, pa.large_list(pa.string()))))
    shares = unknown_shares(shop.reader(), shop.logs(), fitter.encoder(), {"tags": 0.2})
    assert shares["user_id"] == pytest.approx(1 / 4), "rows 160 to 179 validate"
    expected = 1 - (2 / 3) / 0.8
    assert shares["tags"] == pytest.approx(expected), "a third is blue, a fifth is OOV in training already"
    assert shares.keys() == {"user_id", "item_id", "tags"}, "the others have no vocabulary"


def test_training_measures_the_shares(shop: Shop, tmp_path: Path) -> None:
    shop.write(shop.table(400))
    run = prepare_run(shop.config(), tmp_path / "run")
    shares = json.loads(run.survey.read_text())["unknown_ids"]
    assert shares["user_id"] == 0.0
    fixed = prepare_run(shop.config(training={"oov_dropout": 0.1}), tmp_path / "fixed")
    assert "unknown_ids" not in json.loads(fixed.survey.read_text())
