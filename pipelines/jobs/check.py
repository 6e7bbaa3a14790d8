"""The ``check`` job: validates a configuration and its log without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.config.config import Config
from pipelines.counters.columns import joined_columns
from pipelines.data.reader import open_log
from pipelines.engines import Engine
from pipelines.inspection.counter_suggestions import SuggestedCounter, suggest_counters
from pipelines.inspection.label_bounds import estimate_label_bounds
from pipelines.inspection.profile import LogProfile, profile_log
from pipelines.inspection.quality import find_errors, find_late_histories, find_warnings, require_learnable
from pipelines.training.memory import require_memory
from ranking.artifacts.atomic_files import check_writable
from ranking.encoding.encoder_fitter import EncoderFitter


@dataclass(frozen=True)
class LogCheck:
    """Result of a check.

    Attributes:
        config: the checked configuration.
        profile: profile of the log.
        table_sizes: rows of each embedding table of the model.
        errors: reasons why the log cannot be used for training.
        warnings: reasons for which a trained model or its evaluation is less reliable.
        suggestions: counters that fit the log; None if they were not asked for.
    """

    config: Config
    profile: LogProfile
    table_sizes: dict[str, int]
    errors: list[str]
    warnings: list[str]
    suggestions: list[SuggestedCounter] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the profile with ``errors`` and ``warnings``, and ``suggestions`` if they were asked for."""
        record = {**self.profile.to_json(), "errors": self.errors, "warnings": self.warnings}
        return record if self.suggestions is None else record | {"suggestions": [vars(s) for s in self.suggestions]}

    def to_text(self) -> str:
        """Return profile, errors, warnings and suggestions as text for the terminal."""
        errors, warnings = (f"error: {error}" for error in self.errors), (f"warning: {text}" for text in self.warnings)
        return "\n".join([self.profile.to_text(), *errors, *warnings, *self._suggestion_text()])

    def _suggestion_text(self) -> list[str]:
        if self.suggestions is None:
            return []
        if not self.suggestions:
            return ["suggested counters: none; no key of a user or an item repeats often enough"]
        return ["suggested counters for ranker.toml:\n", *(counter.to_toml() for counter in self.suggestions)]

    def require_usable(self) -> None:
        """Check that a model can be trained on the log on this machine.

        Raises:
            LogError: the log has an error.
            ConfigError: the training does not fit into the memory of this machine.
        """
        require_learnable(self.profile, self.config)
        require_memory(self.config, self.table_sizes, self.profile.rows["train"])


def check(
    config: Config, quarantine: Path | None = None, *, suggest: bool = False, engine: Engine | None = None
) -> LogCheck:
    """Read the log once and judge it.

    Args:
        config: the whole configuration.
        quarantine: file for the bad rows; None: not written.
        suggest: whether to propose counters, for which a part of the log is read once more.
        engine: lets its workers read the files of the log, which gives the same result; None: this process does.

    Raises:
        LogError: the log cannot be read, or it has no usable row.
        OutputError: the quarantine file cannot be written.
        ConfigError: a hashed embedding table does not fit into the memory of this machine.
    """
    require_memory(config)
    if quarantine is not None:
        check_writable(quarantine)
    reader = open_log(config.logs, config.training_schema)
    schema = estimate_label_bounds(reader, config.logs, config.training_schema)
    fitter = EncoderFitter(schema)
    reader = reader.with_schema(schema)
    with joined_columns(reader, schema) as joined:
        reader = reader.with_joined(joined)
        profile = profile_log(reader, config.logs, schema, quarantine, [fitter], engine)
        suggestions = suggest_counters(reader, config.logs, schema) if suggest else None
    sizes = {name: mapping.size for name, mapping in fitter.encoder().id_mappings.items()}
    warnings = [*find_warnings(profile, config), *find_late_histories(profile, schema)]
    return LogCheck(config, profile, sizes, find_errors(profile, config), warnings, suggestions)
