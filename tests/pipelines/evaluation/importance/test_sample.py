"""Tests of ``pipelines.evaluation.importance.sample``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.evaluation.importance.sample import EncodedSample, donor_rows, sample_rows
from pipelines.evaluation.importance.subjects import subjects_of
from pipelines.evaluation.sources import LogRange, Scorer
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import fill_features
from ranking.errors import LogError
from ranking.metrics import SamplingUnits
from tests.pipelines.conftest import Shop
from tests.pipelines.evaluation.importance.conftest import MakeScorer

USERS = np.array([3, 1, 3, 3, 2, 1, 2, 3, 4, 5])


# Rows.


def test_sample_rows_within_the_limit_are_all_rows() -> None:
    np.testing.assert_array_equal(sample_rows(SamplingUnits.of(USERS), 10), np.arange(10))


def test_sample_rows_beyond_the_limit_are_whole_units_but_for_one() -> None:
    users = np.random.default_rng(0).integers(1, 50, 1000)
    rows = sample_rows(SamplingUnits.of(users), 300)
    assert len(rows) == 300
    assert (np.diff(rows) > 0).all()
    kept, total = Counter(users[rows].tolist()), Counter(users.tolist())
    assert sum(kept[user] < total[user] for user in kept) <= 1
    np.testing.assert_array_equal(rows, sample_rows(SamplingUnits.of(users), 300))


def test_donor_rows_by_row_are_a_permutation() -> None:
    rows = donor_rows(USERS, "row", 0)
    assert sorted(rows.tolist()) == list(range(10))
    assert rows.tolist() != donor_rows(USERS, "row", 1).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_donor_rows_by_unit_come_from_one_unit_in_its_order(seed: int) -> None:
    donors = donor_rows(USERS, "unit", seed)
    for user in set(USERS.tolist()):
        own = donors[user == USERS]
        (donor,) = set(USERS[own].tolist())
        theirs = np.flatnonzero(donor == USERS).tolist()
        start = theirs.index(own[0])
        assert own.tolist() == [theirs[(start + i) % len(theirs)] for i in range(len(own))]


def test_donor_rows_by_unit_draw_units_in_proportion_to_their_rows() -> None:
    units = np.repeat([0, 1, 2], [70, 20, 10])
    units = np.concatenate([units, np.arange(3, 103)])
    drawn = np.mean([np.bincount(units[donor_rows(units, "unit", s)], minlength=3)[:3] for s in range(2000)], axis=0)
    np.testing.assert_allclose(drawn, [70, 20, 10], rtol=0.1)


# Features.


def encoded_sample(shop: Shop, make_scorer: MakeScorer, rows: np.ndarray[Any, Any]) -> tuple[EncodedSample, Scorer]:
    shop.write(shop.table(60).slice(0, 25), "a.parquet")
    shop.write(shop.table(60).slice(25), "b.parquet")
    scorer = make_scorer(shop)
    files = tuple(chunk.file for chunk in shop.reader().scan())
    positions = np.where(rows < 25, rows, rows - 25 + (1 << 40))
    return EncodedSample.read(scorer, LogRange(shop.log), files, positions), scorer


def encode(shop: Shop, encoder: Encoder, table: pa.Table) -> dict[str, Any]:
    inputs = encoder.encode(fill_features(table, shop.schema, {}))
    bags = {f"bag {i}": (bag.values.tolist(), bag.lengths.tolist()) for i, bag in enumerate(inputs.bags)}
    return {"ids": inputs.ids.tolist(), "dense": inputs.dense.tolist(), "missing": inputs.missing.tolist(), **bags}


def arrays(sample: EncodedSample, *shuffle: Any) -> dict[str, Any]:
    inputs = sample.shuffled(*shuffle) if shuffle else sample.inputs
    bags = {f"bag {i}": (bag.values.tolist(), bag.lengths.tolist()) for i, bag in enumerate(inputs.bags)}
    return {"ids": inputs.ids.tolist(), "dense": inputs.dense.tolist(), "missing": inputs.missing.tolist(), **bags}


def test_encoded_sample_contains_the_rows_of_all_files(crossed_shop: Shop, make_scorer: MakeScorer) -> None:
    rows = np.array([0, 3, 24, 25, 40, 59])
    sample, scorer = encoded_sample(crossed_shop, make_scorer, rows)
    assert arrays(sample) == encode(crossed_shop, scorer.encoder, crossed_shop.table(60).take(rows))


def test_shuffled_rows_equal_the_encoding_of_shuffled_columns(crossed_shop: Shop, make_scorer: MakeScorer) -> None:
    """Shuffling encoded values of a column gives the same as shuffling the column, then encoding it."""
    rows = np.arange(60)
    sample, scorer = encoded_sample(crossed_shop, make_scorer, rows)
    donors = donor_rows(rows, "row", 0)
    table = crossed_shop.table(60)
    compared = set()
    subjects = subjects_of(crossed_shop.schema)
    groups = {subject.name for subject in subjects if subject.kind == "column"}
    assert groups == {"tab", "item_id", "age"}
    for subject in subjects:
        if subject.kind == "column" or (subject.name in table.column_names and subject.name not in groups):
            index = table.column_names.index(subject.name)
            moved = table.set_column(index, subject.name, table[subject.name].take(donors))
            assert arrays(sample, subject, donors) == encode(crossed_shop, scorer.encoder, moved), subject.name
            assert arrays(sample, subject, donors) != arrays(sample), subject.name
            compared.add(subject.name)
    assert compared == {"user_id", "item_id", "age", "price", "tags", "tab"}


def test_shuffled_feature_of_a_group_leaves_the_others(crossed_shop: Shop, make_scorer: MakeScorer) -> None:
    sample, scorer = encoded_sample(crossed_shop, make_scorer, np.arange(60))
    donors = donor_rows(np.arange(60), "row", 0)
    names = [feature.name for feature in scorer.schema.categoricals]
    for alone in ("tab", "tab_item"):
        (subject,) = (s for s in subjects_of(scorer.schema) if (s.kind, s.name) == ("feature", alone))
        shuffled = sample.shuffled(subject, donors)
        changed = (shuffled.ids != sample.inputs.ids).any(axis=0)
        assert [name for name, is_changed in zip(names, changed, strict=True) if is_changed] == [alone]


def test_encoded_sample_of_a_changed_log_fails(crossed_shop: Shop, make_scorer: MakeScorer) -> None:
    with pytest.raises(LogError, match="the log changed while it was evaluated: evaluate again"):
        encoded_sample(crossed_shop, make_scorer, np.array([0, 61]))
