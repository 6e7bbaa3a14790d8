"""Base class and field types of the schema."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

T = TypeVar("T")

Owner = Literal["user", "item", "context"]
"""Entity that a feature describes."""
ID_OWNERS: tuple[Owner, Owner] = ("user", "item")
"""Owners that have ids: all but the context."""
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
"""Pattern of a model name, which is a folder name in the repository and a path segment in URLs."""

MAX_NAME = 200
"""Maximum length of a name in characters. The names of tables and counters are parts of file names."""


def _check_name(text: str, column_key: str | None = None) -> str:
    """Check a name; ``column_key`` is the setting that may hold a column of another name, for the suggestion."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        suggestion = re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", text)
        suggested = f', such as name = "{suggestion}" with {column_key} = "{text}"' if column_key and text else ""
        raise ValueError(
            f"{text!r} is not a valid name: use the letters a to z, digits and '_', and do not start with a digit"
            f"{suggested:.200}"
        )
    if len(text) > MAX_NAME:
        raise ValueError(f"{text[:20]!r}… has {len(text)} characters: a name has at most {MAX_NAME}")
    return text


def _check_model_name(text: str) -> str:
    if not re.fullmatch(MODEL_NAME, text):
        raise ValueError(
            f"{text!r} is not a valid model name: use letters, digits, '_' and '-', and start with a letter or a digit"
        )
    return text


Name = Annotated[str, AfterValidator(_check_name)]
"""Name of a feature, task or embedding table."""
FeatureName = Annotated[str, AfterValidator(partial(_check_name, column_key="column"))]
"""Name of a feature with a column, which may have any name."""
TaskName = Annotated[str, AfterValidator(partial(_check_name, column_key="label"))]
"""Name of a task, whose label column may have any name."""
ModelName = Annotated[str, AfterValidator(_check_model_name)]
ColumnName = Annotated[str, Field(min_length=1)]
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
"""List in the configuration, stored as a tuple; its entries are still validated strictly."""
Widths = Annotated[ListOf[PositiveInt], Field(min_length=1)]
"""Number of units of each layer of a network, first layer first."""


class StrictModel(BaseModel):
    """Base of configuration models: immutable, rejects unknown keys and does not convert between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


def default_to_name(data: Any, key: str) -> Any:
    """Return the configuration with ``key`` set to the value of ``name`` if it has no ``key``."""
    return {key: data["name"], **data} if isinstance(data, dict) and isinstance(data.get("name"), str) else data
