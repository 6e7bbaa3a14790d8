"""What a study searches: for each setting a range or a list of choices. ``[tune]`` of a ranker.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ranking.errors import ConfigError
from ranking.schema import ListOf, StrictModel
from ranking.schema.validation_errors import format_validation_error

if TYPE_CHECKING:
    from optuna import Trial

    from pipelines.config.config import Config


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and isfinite(value))


def _number(value: Any) -> Any:
    if value is not None and not _is_number(value):
        raise PydanticCustomError("number", "must be a number")
    return value


def _choice(value: Any) -> Any:
    layers = isinstance(value, list) and all(map(_is_whole, value))
    if not layers and not _is_number(value) and not isinstance(value, bool | str):
        raise PydanticCustomError("choice", "must be a number, text, true, false or a list of whole numbers")
    return value


Number = Annotated[int | float | None, BeforeValidator(_number)]
Choice = Annotated[bool | int | float | str | list[int], BeforeValidator(_choice)]


class Range(StrictModel):
    """Values of one setting. A list in the document stands for ``choices``.

    Attributes:
        low: smallest value; whole numbers at both ends mean whole numbers between.
        high: largest value.
        log: search the exponents evenly, for settings that differ by powers of ten.
        choices: in place of low and high.
    """

    low: Number = None
    high: Number = None
    log: bool = False
    choices: Annotated[ListOf[Choice], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_list_is_choices(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            return {"choices": data}
        if isinstance(data, dict) and any(isinstance(data[key], dict | list) for key in data.keys() - cls.model_fields):
            raise ValueError('write the whole setting in quotes, such as "training.learning_rate.trunk" = …')
        if not isinstance(data, dict | Range):
            raise PydanticCustomError("range", "must be a table with low and high, or a list of choices")
        return data

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        ends = (self.low, self.high)
        if self.choices is not None:
            if ends != (None, None) or self.log:
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
        """Values that must be valid for all of them to be."""
        return self.choices if self.choices is not None else (self.low, self.high)

    def draw(self, trial: Trial, path: str) -> Any:
        """The value that a trial is to try."""
        if self.choices is not None:  # Optuna stores plain values only: a list goes by its text
            named = {json.dumps(choice): choice for choice in self.choices}
            return named[trial.suggest_categorical(path, list(named))]
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(path, self.low, self.high, log=self.log)
        assert self.low is not None
        assert self.high is not None
        return trial.suggest_float(path, self.low, self.high, log=self.log)


LAYERS = ([64], [128], [256])
DEFAULTS: Mapping[str, Range] = {
    "training.learning_rate.embeddings": Range(low=1e-3, high=0.3, log=True),
    "training.learning_rate.trunk": Range(low=1e-5, high=1e-2, log=True),
    "training.learning_rate.gates": Range(low=1e-3, high=1e-1, log=True),
    "training.convergence.gamma": Range(choices=(0.1, 1.0, 10.0)),
    "model.gate.k": Range(choices=(2, 4)),
    "model.gate.entropy_weight": Range(choices=(0.0, 0.1, 1.0, 10.0)),
    "model.gate.sparsity_weight": Range(low=1e-6, high=10.0, log=True),
    "model.expert_layers": Range(choices=LAYERS),
    "model.dropout": Range(choices=(0.0, 0.25, 0.5)),
}
"""DSelect-k, appendix D: learning rates in 1e-3 … .3 under Adagrad (D.1) and in 1e-5 … 1e-2 under Adam (D.2), γ in
{.1, 1, 10} (D.2), k in {2, 4} and λ in {.1, 1, 10} (D.1), Gumbel's λ in 1e-6 … 10 (D.1). Ours: the gates' rate, λ = 0,
the experts' widths and dropout, which the paper fixes at 256 and .5 (D.1)."""

OF_DSELECT_K = {"training.convergence.gamma"}
OF_STATIC_GATES = {"training.learning_rate.gates"}


def search_space(config: Config) -> dict[str, Range]:
    """Setting → range: those of ``[tune]``, and the defaults of the other settings that the configured gate has.

    Raises:
        ConfigError: a range of ``[tune]`` that holds a value which the configuration cannot take; names the setting.
    """
    for path, values in config.tune.items():
        for value in values.extremes:
            try:
                override(config, {path: value})
            except ConfigError as error:
                raise ConfigError(f'tune."{path}": {value!r} cannot be tried: {error}') from None
    return {path: default for path, default in DEFAULTS.items() if _applies(config, path)} | dict(config.tune)


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with these settings, and without ``[tune]``.

    Raises:
        ConfigError: they make no configuration; says why.
    """
    document = config.model_dump(mode="json", exclude={"tune"}, exclude_none=True)
    for path, value in values.items():
        *sections, key = path.split(".")
        if sections[:1] not in (["model"], ["training"]):
            raise ConfigError("only settings below model and training can be tuned")
        place: Any = document
        for section in sections:
            place = place.get(section)
            if not isinstance(place, dict):
                raise ConfigError(f"there is no section {'.'.join(sections)}")
        place[key] = value
    try:
        return type(config).model_validate(document)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, document)) from None


def _applies(config: Config, path: str) -> bool:
    """Whether the configured gate has the setting, and can take every default value of it."""
    gate = config.model.gate
    if path in OF_DSELECT_K and gate.kind != "dselect_k":
        return False
    if path in OF_STATIC_GATES and (gate.kind == "shared_bottom" or getattr(gate, "per_example", False)):
        return False
    try:
        for value in DEFAULTS[path].extremes:
            override(config, {path: value})
    except ConfigError:
        return False
    return True
