"""Inputs and outputs of a model as tensors."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from ranking.encoding.vocabulary import Vocabulary
from ranking.schema import InputFeature, NumberFeature, Owner, PooledFeature
from service.engine.model import LoadedModel
from service.http.index import NAME
from service.protocol.messages import ModelMetadata
from service.protocol.open_inference import SCORE, ServerMetadata

PLATFORM = "dselect-ranker"
SHARED: tuple[Owner, ...] = ("user", "context")
"""Owners of which a request has one."""

ANY_SIZE = -1
"""Size of a dimension that may have any."""


def server_metadata() -> ServerMetadata:
    """Return the name and version of the service."""
    return ServerMetadata(name=NAME, version=version(NAME), extensions=["binary_tensor_data"])


def output_names(model: LoadedModel) -> list[str]:
    """Return the names of the outputs: the tasks, then ``score``. A task of that name takes its place."""
    return list(dict.fromkeys([*model.ranker.schema.task_names, SCORE]))


def model_metadata(model: LoadedModel, versions: Iterable[str]) -> ModelMetadata:
    """Return the inputs and outputs of a version.

    Args:
        model: the version.
        versions: loaded versions of the model.
    """
    ranker = model.ranker
    tasks = {task.name: task.model_dump(include={"kind", "transform", "group"}) for task in ranker.schema.tasks}
    return ModelMetadata(
        name=model.name,
        versions=list(versions),
        platform=PLATFORM,
        backend=model.backend.name,
        backends=ranker.backends,
        inputs=_inputs(model),
        outputs=[
            {"name": name, "datatype": "FP32", "shape": [ANY_SIZE], **tasks.get(name, {"kind": "objective"})}
            for name in output_names(model)
        ],
        objective=dict(ranker.objective),
        experts_used=ranker.selection.experts_used,
        experts_total=ranker.selection.num_experts,
    )


def _inputs(model: LoadedModel) -> list[dict[str, Any]]:
    """Return the tensors of the ids, then those of the features by column."""
    schema = model.ranker.schema
    inputs = {
        column: {"datatype": _id_type(model, owner), "shape": _shape(owner), "kind": "id", "owner": owner}
        for owner, column in (("item", schema.columns.item), ("user", schema.columns.user))
    }
    for feature in schema.inputs:
        fields = feature.model_dump(include={"kind", "owner", "max_length"})
        if feature.column in inputs:
            inputs[feature.column] |= fields
            continue
        datatype = "FP64" if isinstance(feature, NumberFeature) else _embedded_type(model, feature)
        shape = _shape(feature.owner) + [ANY_SIZE] * isinstance(feature, PooledFeature)
        inputs[feature.column] = {"datatype": datatype, "shape": shape, **fields}
    return [{"name": column, **fields} for column, fields in inputs.items()]


def _shape(owner: str) -> list[int]:
    return [1 if owner in SHARED else ANY_SIZE]


def _id_type(model: LoadedModel, owner: str) -> str:
    columns, tables = model.ranker.schema.columns, model.ranker.tables
    for feature in model.ranker.schema.inputs:
        if feature.column == getattr(columns, owner) and not isinstance(feature, NumberFeature):
            return _embedded_type(model, feature)
    table: Any = tables.get(owner)  # type: ignore[call-overload]
    return "INT64" if table is not None and pa.types.is_integer(table.ids.type) else "BYTES"


def _embedded_type(model: LoadedModel, feature: InputFeature) -> str:
    """Return the data type of ids: that of the vocabulary; an integer and its text have the same hash."""
    mapping = model.ranker.encoder.id_mappings[feature.table] if not isinstance(feature, NumberFeature) else None
    return "INT64" if isinstance(mapping, Vocabulary) and pa.types.is_integer(mapping.id_type) else "BYTES"
