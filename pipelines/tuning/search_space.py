"""Search space of a study: the default ranges, those of ``[tune]``, and sampling from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pipelines.config.consistency import require_consistent
from pipelines.config.types import Range
from ranking.errors import ConfigError
from ranking.schema.validation_errors import format_validation_error
from ranking.schema.value_text import value_text

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from pipelines.config.config import Config

DEFAULTS: Mapping[str, Range] = {
    "training.learning_rate.embeddings": Range(low=1e-3, high=0.3, log=True),
    "training.learning_rate.trunk": Range(low=1e-5, high=1e-2, log=True),
    "training.learning_rate.gates": Range(low=1e-3, high=1e-1, log=True),
    "training.convergence.gamma": Range(choices=(0.1, 1.0, 10.0)),
    "model.gate.entropy_weight": Range(choices=(0.0, 0.1, 1.0, 10.0)),
    "model.gate.sparsity_weight": Range(low=1e-6, high=10.0, log=True),
    "model.reading": Range(choices=("sum", "scaled", "side_by_side")),
    "model.dropout": Range(choices=(0.0, 0.25, 0.5)),
}
"""Default ranges, which are extended by the configured value.

From the DSelect-k paper, appendix D: learning rates 1e-3 … 0.3 under Adagrad (D.1) and 1e-5 … 1e-2 under Adam (D.2),
γ in {0.1, 1, 10} (D.2), λ in {0.1, 1, 10} (D.1), λ of Gumbel-softmax 1e-6 … 10 (D.1). Ours: the learning rate of the
gates, λ = 0, readings, and dropout, which the paper fixes at 0.5 (D.1).
"""
LAYERS, LAYERS_FACTORS = ("model.expert_layers", "model.tower_layers"), (0.5, 1, 2)
"""Widths, and their default values relative to the configured ones. Ours: the paper has experts of 256 units (D.1)."""

EXPERTS, K, BUDGET = "model.experts", "model.gate.k", "model.gate.experts_budget"
"""Settings n, k and B, whose values must satisfy k ≤ B ≤ n."""
K_CHOICES = (2, 4)
"""Default values of k (paper, appendix D.1)."""
EXPERTS_FACTORS, BUDGET_FACTORS = (1, 2), (0.5, 1, 2, 4)
"""Default values of n and B, relative to the configured ones. Ours: the paper has no budget and fixes n at 8 (D.1)."""

DSELECT_K_SETTINGS = {"training.convergence.gamma"}
"""Settings that only ``dselect_k`` gates use."""
STATIC_GATE_SETTINGS = {"training.learning_rate.gates", "model.reading"}
"""Settings of gates that select experts per task: not of per-example gates, and not of a shared bottom."""


def search_space(config: Config) -> dict[str, Range]:
    """Return the range of each searched setting: ``[tune]``, and the defaults of the settings that the gate has.

    Raises:
        ConfigError: a range of ``[tune]`` contains a value that the configuration does not accept; names the setting.
    """
    counts = [path for path in (EXPERTS, K, BUDGET) if path in config.tune]
    for path, values in config.tune.items():
        _check(config, path, values, [])
    for path in counts:
        _check(config, path, config.tune[path], [other for other in counts if other != path])
    defaults = {path: _including(values, _configured_value(config, path)) for path, values in DEFAULTS.items()}
    for path in LAYERS:
        widths = _configured_value(config, path)
        layers = ([max(1, round(width * factor)) for width in widths] for factor in LAYERS_FACTORS)
        defaults[path] = Range(choices=tuple(layers))
    applicable = {path: values for path, values in defaults.items() if _is_applicable(config, path, values)}
    return applicable | _expert_counts(config) | dict(config.tune)


def suggest(trial: BaseTrial, space: Mapping[str, Range]) -> dict[str, Any]:
    """Return the value of each setting that a trial samples, or that a ``FixedTrial`` contains."""
    return {path: _suggest_value(trial, path, values) for path, values in space.items()}


def starting_params(config: Config, space: Mapping[str, Range]) -> dict[str, Any]:
    """Return the configured value of each setting whose range contains it, as Optuna stores it."""
    values = {path: _configured_value(config, path) for path in space}
    return {
        path: value if space[path].choices is None else json.dumps(value)
        for path, value in values.items()
        if _contains(space[path], value)
    }


def override(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the configuration with new values for some settings, and without ``[tune]``.

    Args:
        config: the configuration.
        values: value by setting, such as ``training.learning_rate.trunk``.

    Raises:
        ConfigError: a setting does not exist or cannot be tuned, or a value is invalid.
    """
    document = config.model_dump(mode="json", exclude={"tune"}, exclude_none=True)
    for path, value in values.items():
        *sections, key = path.split(".")
        if sections[:1] not in (["model"], ["training"]):
            raise ConfigError("only settings below model and training can be tuned")
        table: Any = document
        for section in sections:
            table = table.get(section)
            if not isinstance(table, dict):
                raise ConfigError(f"there is no section {'.'.join(sections)}")
        table[key] = value
    try:
        overridden = type(config).model_validate(document)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, document, type(config))) from None
    require_consistent(overridden)
    return overridden


def _check(config: Config, path: str, values: Range, others: Sequence[str]) -> None:
    """Check an entry of ``[tune]`` together with every value of other entries, which are numbers of experts.

    Raises:
        ConfigError: names the entry and its first invalid value.
    """
    if path == "model.gate.kind":
        raise ConfigError(f'tune."{path}": kinds have different settings; tune a configuration of each kind')
    fixed = _widest_counts(config) if path in (EXPERTS, K, BUDGET) else {}
    for value, corner in product(values.extremes, product(*(config.tune[other].extremes for other in others))):
        try:
            override(config, {**fixed, **dict(zip(others, corner, strict=True)), path: value})
        except ConfigError as error:
            raise ConfigError(f'tune."{path}": {value_text(value)} is not a valid value: {error}') from None


def _widest_counts(config: Config) -> dict[str, int | None]:
    """Return values of n, k and B that leave most room for the others, because defaults are moved to fit ``[tune]``."""
    given = [value for path in (K, BUDGET) if path in config.tune for value in config.tune[path].extremes]
    counts: dict[str, int | None] = {EXPERTS: max((config.model.experts, *(n for n in given if isinstance(n, int))))}
    if hasattr(config.model.gate, "k"):
        counts[K] = 1
    if config.model.experts_budget is not None:
        counts[BUDGET] = None
    return counts


def _including(values: Range, configured: Any) -> Range:
    """Return a range extended by the configured value, so that a search contains its start."""
    if configured is None or _contains(values, configured) or (values.log and configured <= 0):
        return values
    if values.choices is not None:
        return Range(choices=(*values.choices, configured))
    return Range(low=min(values.low, configured), high=max(values.high, configured), log=values.log)


def _suggest_value(trial: BaseTrial, path: str, values: Range) -> Any:
    if values.choices is not None:  # Optuna stores plain values only, so a list is represented by its JSON text
        by_text = {json.dumps(choice): choice for choice in values.choices}
        return by_text[trial.suggest_categorical(path, list(by_text))]
    assert values.low is not None
    assert values.high is not None
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(path, values.low, values.high, log=values.log)
    return trial.suggest_float(path, values.low, values.high, log=values.log)


def _configured_value(config: Config, path: str) -> Any:
    """Return the value of a setting as in a TOML file; None if it is not set."""
    value: Any = config.model_dump(mode="json", exclude={"tune"})
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _contains(values: Range, value: Any) -> bool:
    """Return whether a range contains a value, which must be an integer if all values of the range are."""
    if values.choices is not None:
        return json.dumps(value) in map(json.dumps, values.choices)
    assert values.low is not None
    assert values.high is not None
    whole = isinstance(values.low, int) and isinstance(values.high, int)
    return isinstance(value, int if whole else int | float) and values.low <= value <= values.high


def _expert_counts(config: Config) -> dict[str, Range]:
    """Return the ranges of n, k and B: those of ``[tune]``, and defaults moved so that all satisfy k ≤ B ≤ n."""
    model, tune = config.model, config.tune
    if model.gate.kind == "shared_bottom":
        return {}
    given_k, given_budgets = (tune[path].extremes if path in tune else () for path in (K, BUDGET))
    lowest = max((1, *given_k, *given_budgets))
    ranges = {EXPERTS: tune.get(EXPERTS) or _choices(max(model.experts * factor, lowest) for factor in EXPERTS_FACTORS)}
    fewest = min(ranges[EXPERTS].extremes)
    if hasattr(model.gate, "k"):
        ks = (*K_CHOICES, model.gate.k)
        ranges[K] = tune.get(K) or _choices(min((k, fewest, *given_budgets)) for k in ks)
    if model.experts_budget is not None:
        budgets = (int(model.experts_budget * factor) for factor in BUDGET_FACTORS)
        largest_k = max(ranges[K].extremes)
        ranges[BUDGET] = tune.get(BUDGET) or _choices(min(max(budget, largest_k), fewest) for budget in budgets)
    return ranges


def _choices(values: Iterable[int]) -> Range:
    return Range(choices=tuple(sorted(set(values))))


def _is_applicable(config: Config, path: str, values: Range) -> bool:
    """Return whether the configured gate has the setting and accepts every default value of it."""
    gate = config.model.gate
    if path in DSELECT_K_SETTINGS and gate.kind != "dselect_k":
        return False
    selects_per_task = gate.kind not in ("shared_bottom", "attentive") and not getattr(gate, "per_example", False)
    if path in STATIC_GATE_SETTINGS and not selects_per_task:
        return False
    try:
        for value in values.extremes:
            override(config, {path: value})
    except ConfigError:
        return False
    return True
