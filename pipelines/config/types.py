"""Value types of ``ranker.toml`` beyond those of pydantic: timestamps and search ranges."""

from __future__ import annotations

from datetime import date, datetime, time
from math import isfinite
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ranking.schema import ListOf, StrictModel

INVALID_TIMESTAMP = "must be a date or a timestamp, such as 2026-01-09 or 2026-01-09T06:00:00"


def parse_timestamp(value: Any) -> datetime:
    """Convert a TOML date, a TOML timestamp or ISO 8601 text; a date means its midnight.

    Raises:
        PydanticCustomError: the value is neither a date nor a timestamp.
    """
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise PydanticCustomError("timestamp", INVALID_TIMESTAMP) from None


Timestamp = Annotated[datetime, BeforeValidator(parse_timestamp)]
"""A timestamp with or without a time zone; a date is accepted too."""


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and isfinite(value))


def _check_number(value: Any) -> Any:
    if value is not None and not _is_number(value):
        raise PydanticCustomError("number", "must be a number")
    return value


def _check_choice(value: Any) -> Any:
    is_integer_list = isinstance(value, list) and all(map(_is_integer, value))
    if not is_integer_list and not _is_number(value) and not isinstance(value, bool | str):
        raise PydanticCustomError("choice", "must be a number, text, true, false or a list of whole numbers")
    return value


Number = Annotated[int | float | None, BeforeValidator(_check_number)]
Choice = Annotated[bool | int | float | str | list[int], BeforeValidator(_check_choice)]


class Range(StrictModel):
    """Values of one setting that ``ranker tune`` searches. In the TOML file, a list is short for ``choices``.

    Attributes:
        low: smallest value; if both bounds are integers, all values are integers.
        high: largest value.
        log: whether values are sampled uniformly on a logarithmic scale.
        choices: list of values, instead of low and high.
    """

    low: Number = None
    high: Number = None
    log: bool = False
    choices: Annotated[ListOf[Choice], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_list(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            return {"choices": data}
        if isinstance(data, dict) and any(isinstance(data[key], dict | list) for key in data.keys() - cls.model_fields):
            raise ValueError('write the whole setting in quotes, such as "training.learning_rate.trunk" = …')
        if not isinstance(data, dict | Range):
            raise PydanticCustomError("range", "must be a table with low and high, or a list of choices")
        return data

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.choices is not None:
            if (self.low, self.high) != (None, None) or self.log:
                raise ValueError("give either choices or low and high")
        elif self.low is None or self.high is None:
            raise ValueError("give low and high, or a list of choices")
        elif self.low >= self.high:
            raise ValueError("low must be smaller than high")
        elif self.log and self.low <= 0:
            raise ValueError("log needs low > 0")
        return self

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values whose validity implies that all values are valid: the choices, or low and high."""
        return self.choices if self.choices is not None else (self.low, self.high)
