"""A small ranker with counters and histories, with a state that a test writes directly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ranking.counters.combine import combine, impression_records
from ranking.counters.features import CounterFeatures
from ranking.counters.history_state import write_history_state
from ranking.counters.keys import PartHashes, root_part
from ranking.counters.state import StateClock, write_counter_state
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.encoding.vocabulary import hash_column
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.settings.gate import SoftmaxConfig
from ranking.settings.model import ModelConfig

ZONE = "Europe/Berlin"
NOW = 1_750_000_000_000_000
"""Time of the state in microseconds: 15 June 2025, 17:06:40 in the time zone of the log."""
USERS, ITEMS = 12, 20

COUNTED: dict[str, Any] = {
    "name": "counted",
    "counters": [
        {"of": ["user_id"], "labels": ["click", "watch"]},
        {"of": ["item_id"], "labels": ["click"], "window": "3d"},
        {"of": ["user_id", "tab"], "labels": ["click"], "name": "user_tab"},
        {"of": ["user_id", "tags"], "labels": ["click", "watch"], "name": "user_tags", "half_life": "2d"},
        {"of": ["tags"], "labels": ["click"], "prior": 5.0, "delay": "1h"},
        {"of": ["tab", "country"], "labels": ["watch"], "name": "tab_country"},
    ],
    "histories": [{"of": "item_id", "label": "click", "max_length": 3, "name": "clicked"}],
    "features": [
        {"name": "user_id", "kind": "categorical", "owner": "user", "dim": 4},
        {"name": "item_id", "kind": "categorical", "owner": "item", "dim": 4},
        {"name": "country", "kind": "categorical", "owner": "user", "dim": 3},
        {"name": "tab", "kind": "categorical", "owner": "context", "dim": 2},
        {"name": "tags", "kind": "bag", "owner": "item", "dim": 4},
        {"name": "country_tab", "kind": "cross", "of": ["country", "tab"], "hash_buckets": 13, "dim": 3},
        {"name": "activity", "column": "user_id_count", "kind": "buckets", "owner": "user", "boundaries": [5, 40]},
        {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p"},
    ],
    "tasks": [{"name": "click", "kind": "binary"}, {"name": "watch", "kind": "regression"}],
}
"""A schema whose counters have all options and keys of a user, an item, both with others, and neither."""


def user_ids(*, text: bool) -> list[Any]:
    """Return the ids of known users."""
    return [f"u{i}" if text else i for i in range(USERS)]


def item_ids(*, text: bool) -> list[Any]:
    """Return the ids of known items."""
    return [f"v{i}" if text else i for i in range(ITEMS)]


def make_tables(*, text: bool) -> dict[Owner, FeatureTable]:
    """Return features of the known users and items."""
    countries = [["de", "fr", None][i % 3] for i in range(USERS)]
    users = pa.table({"user_id": user_ids(text=text), "country": pa.array(countries, pa.string())})
    tags = [None if i % 7 == 6 else [f"t{j}" for j in range(i % 4)] for i in range(ITEMS)]
    items = pa.table(
        {
            "item_id": item_ids(text=text),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "price": [None if i % 5 == 4 else float(i) for i in range(ITEMS)],
        }
    )
    return {"user": FeatureTable(users, "user_id"), "item": FeatureTable(items, "item_id")}


def draw_events(rows: int, seed: int, *, text: bool, end: int = NOW) -> pa.Table:
    """Draw rows of a log with different times in the six days before ``end``, in the order of time."""
    random = np.random.default_rng(seed)
    users, items = user_ids(text=text), item_ids(text=text)
    times = end - np.sort(random.choice(6 * 86_400, rows, replace=False))[::-1] * 1_000_000
    return pa.table(
        {
            "time": pa.array(times, pa.timestamp("us", ZONE)),
            "user_id": [users[i] for i in random.integers(0, USERS - 3, rows)],
            "item_id": [items[i] for i in random.integers(0, ITEMS - 3, rows)],
            "tab": pa.array(random.choice(["home", "search"], rows), mask=random.random(rows) < 0.1),
            "click": random.integers(0, 2, rows),
            "watch": random.exponential(2.0, rows),
        }
    )


def write_state(folder: Path, schema: Schema, events: pa.Table, tables: dict[Owner, FeatureTable]) -> None:
    """Write the state at the end of these events."""
    completed = fill_features(events, schema, tables)
    hashes = PartHashes.from_table(completed, schema)
    times = events["time"].cast(pa.int64()).to_numpy()
    for counter in schema.counters:
        part = root_part(counter, schema)
        roots = hashes.singles[part] if part is not None else np.zeros(len(times), np.int64)
        labels = np.stack([events[label].to_numpy().astype(float) for label in counter.labels], 1)
        records, base = impression_records(counter, hashes, roots, times, labels, ZONE)
        write_counter_state(folder, counter, combine(counter, records), combine(counter, base))
    for history in schema.histories:
        clicked = events.filter(pa.array(events[history.label].to_numpy() == history.value))
        lists: dict[int, list[Any]] = {}
        for user, item in zip(
            hash_column(clicked["user_id"].combine_chunks()).tolist(), clicked["item_id"], strict=True
        ):
            lists.setdefault(user, []).append(item.as_py())
        kind = pa.large_list(events["item_id"].type)
        items = pa.array([values[-history.max_length :] for values in lists.values()], kind)
        write_history_state(folder, history, np.array(list(lists), np.int64), items)
    first, last = (int(times[0]), int(times[-1])) if len(times) else (0, 0)
    StateClock(last, ZONE, first).write(folder)


def make_counted_ranker(folder: Path, *, text: bool, tables: bool = True) -> FrozenRanker:
    """Return a ranker with a state in this new folder; its encoder is fitted on the values of its own state.

    Args:
        folder: folder of the state.
        text: whether the ids are text; else integers.
        tables: whether the ranker has feature tables.
    """
    schema = Schema.model_validate(COUNTED)
    side = make_tables(text=text)
    events = draw_events(400, 0, text=text)
    write_state(folder, schema, events, side)
    counter_features = CounterFeatures.open(folder, schema)
    fitter = EncoderFitter(schema)
    fitter.add(counter_features.complete(fill_features(events, schema, side)))
    encoder = fitter.encoder()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        sizes = {name: mapping.size for name, mapping in encoder.id_mappings.items()}
        embeddings = Embeddings(schema, sizes)
        config = ModelConfig(experts=3, expert_layers=(8,), tower_layers=(4,), gate=SoftmaxConfig(kind="softmax"))
        model = MMoE(config, len(schema.tasks), embeddings, DenseInputs(encoder.dense_size, encoder.bins))
        with torch.no_grad():
            for table in schema.tables:
                embeddings.weight(table).normal_(std=0.3)
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
    ranker = freeze(model.eval(), encoder, side if tables else {}, {"click": 1.0}, {"made_by": "test"})
    return replace(ranker, counter_features=counter_features)
