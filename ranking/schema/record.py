"""What every part of the contract is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Owner = Literal["user", "item", "context"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""A model's name is a folder of the repository and a part of URLs."""
ColumnName = Annotated[str, Field(min_length=1)]
Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
"""Units of a network's layers, first layer first."""


class Record(BaseModel):
    """Base of every configuration model: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def with_name(data: Any, key: str) -> Any:
    """The document with ``key`` set to its name where it is left out."""
    return {key: data["name"], **data} if isinstance(data, dict) and "name" in data else data
