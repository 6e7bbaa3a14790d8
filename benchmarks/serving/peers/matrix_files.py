"""Write the files that ``matrices.Matrices`` reads: the inputs of ``body.onnx`` of every item and user."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from ranking.artifacts import bundle
from ranking.encoding.batch import Float32
from ranking.encoding.id_rows import OOV
from ranking.encoding.request_batch import FeatureGroup, SharedItemSplitter
from ranking.encoding.vocabulary import Vocabulary
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner, Schema
from service.backends.onnx import EmbeddingLookup
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder

CHUNK_SIZE = 16_384
"""Number of rows that are encoded at once."""


def write_matrices(bundle_folder: Path, folder: Path) -> None:
    """Write the matrices of the reference model, or of a bundle like it, to an existing folder.

    Args:
        bundle_folder: bundle with tables of users and items by integer ids, and with binary tasks that are not
            calibrated. A feature has one embedding or is a number. Contexts have vocabularies of integers.
        folder: folder of the files.
    """
    ranker = bundle.read_bundle(bundle_folder)
    schema, splitter = ranker.schema, SharedItemSplitter(ranker.encoder)
    columns = _first_columns(splitter.shared, schema)
    (model,) = ranker.models
    weights = model.weights
    context = {feature.name for feature in schema.inputs if feature.owner == "context"}
    categories: dict[str, Any] = {}
    for feature in splitter.shared.singles:
        vocabulary = ranker.encoder.id_mappings[feature.table]
        if feature.name in context and isinstance(vocabulary, Vocabulary):
            categories[feature.name] = vocabulary.ids()[0].as_py()
            np.save(folder / f"context.{feature.name}.ids.npy", vocabulary.ids().to_numpy())
            np.save(folder / f"context.{feature.name}.npy", weights[f"embedding.{feature.table}"][OOV + 1 :])
    scales = {name: ranker.encoder.scales[name] for name in columns if name in context - categories.keys()}
    _write_inputs(ranker, splitter, categories | dict.fromkeys(scales, 0.0), folder)
    layout = {
        "tasks": schema.task_names,
        "categories": {name: columns[name] for name in categories},
        "numbers": {name: (columns[name], scale.shift, scale.scale) for name, scale in scales.items()},
    }
    (folder / "layout.json").write_text(json.dumps(layout))


def _first_columns(group: FeatureGroup, schema: Schema) -> dict[str, int]:
    """Return the first column of each feature of a group in the group's input."""
    columns, start = {}, 0
    for feature in group.singles:
        columns[feature.name] = start
        start += feature.dim
    return columns | {schema.numerics[number].name: start + i for i, number in enumerate(group.dense)}


def _write_inputs(ranker: FrozenRanker, splitter: SharedItemSplitter, context: dict[str, Any], folder: Path) -> None:
    """Write the ids and the inputs of items and users; ``context`` is any context."""
    encoder = RequestEncoder(ranker)
    (model,) = ranker.models
    embed_shared, embed_items = (EmbeddingLookup(group, model.weights) for group in (splitter.shared, splitter.items))
    user_ids, item_ids = (ranker.tables[owner].ids.to_numpy() for owner in ("user", "item"))

    def request(users: Sequence[int], items: Sequence[int], counts: list[int]) -> FeatureRequest:
        contexts = {name: [value] * len(users) for name, value in context.items()}
        owners: dict[Owner, RawFeatures] = {
            "user": RawFeatures(users, {}),
            "context": RawFeatures([None] * len(users), contexts),
        }
        return FeatureRequest({**owners, "item": RawFeatures(items, {})}, counts)

    def embed_user_chunk(ids: Sequence[int]) -> Float32:
        return embed_shared(encoder(request(ids, [int(item_ids[0])] * len(ids), [1] * len(ids))).shared)

    def embed_item_chunk(ids: Sequence[int]) -> Float32:
        return embed_items(encoder(request([int(user_ids[0])], ids, [len(ids)])).items)

    _write_chunks(folder / "users", user_ids, embed_shared.width, embed_user_chunk)
    _write_chunks(folder / "items", item_ids, embed_items.width, embed_item_chunk)


def _write_chunks(stem: Path, ids: Any, width: int, embed: Callable[[Sequence[int]], Float32]) -> None:
    """Write ids [rows] and their inputs [rows, width] as two files."""
    np.save(f"{stem}.ids.npy", ids)
    inputs = open_memmap(f"{stem}.npy", "w+", np.float32, (len(ids), width))
    for start in range(0, len(ids), CHUNK_SIZE):
        inputs[start : start + CHUNK_SIZE] = embed(ids[start : start + CHUNK_SIZE].tolist())
    inputs.flush()
