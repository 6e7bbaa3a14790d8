"""The models that a place in a configuration may hold, for messages that suggest what to write there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel


def models_at(root: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models that a place may hold; several if a key ``kind`` decides and the place does not tell it.

    Args:
        root: model of the configuration.
        place: keys, positions in lists and kinds of union branches, as in the ``loc`` of a pydantic error.
    """
    models: list[type[BaseModel]] = [root]
    for part in place:
        if not isinstance(part, str):
            continue
        below = [found for model in models if part in model.model_fields for found in _field_models(model, part)]
        models = below or [model for model in models if part in _kinds(model)] or models
    return models


def _field_models(model: type[BaseModel], key: str) -> Iterator[type[BaseModel]]:
    yield from _models_in(model.model_fields[key].annotation)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
