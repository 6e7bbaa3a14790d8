"""What every part of the contract is made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

T = TypeVar("T")

Owner = Literal["user", "item", "context"]
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
"""A model's name is a folder of the repository and a part of URLs."""


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"{text!r} is no name: use letters, digits and '_', with no digit at the start")
    return text


def _model_name(text: str) -> str:
    if not re.fullmatch(MODEL_NAME, text):
        raise ValueError(f"{text!r} is no model's name: use letters, digits, '_' and '-', with no mark at the start")
    return text


Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
ColumnName = Annotated[str, Field(min_length=1)]
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in a document, kept as a tuple; its entries are of no other type than they were written in."""
Widths = Annotated[ListOf[PositiveInt], Field(min_length=1)]
"""Units of a network's layers, first layer first."""


class StrictModel(BaseModel):
    """Base of every configuration model: immutable; an unknown key is an error, and so is text in place of a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


def with_name(data: Any, key: str) -> Any:
    """The document with ``key`` set to its name where it is left out."""
    return {key: data["name"], **data} if isinstance(data, dict) and isinstance(data.get("name"), str) else data
