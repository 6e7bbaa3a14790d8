"""The validated content of ``ranker.toml``: schema, logs, model, training, evaluation, serving and tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    ValidationError,
    model_validator,
)

from pipelines.config.consistency import require_consistent
from pipelines.config.toml import read_toml
from pipelines.config.types import Range, Timestamp
from pipelines.config.uri import Uri, Uris
from ranking.errors import ConfigError
from ranking.schema import CrossFeature, ListOf, NumberFeature, NumericFeature, Objective, Schema, StrictModel
from ranking.schema.validation_errors import format_validation_error
from ranking.settings.model import ModelConfig

Fraction = Annotated[float, Field(ge=0, le=1)]
WIDTH_STEP = 4
"""Embedding widths must be multiples of this number, because FBGEMM loads four weights at a time."""
RankingGroup = Literal["user_day", "request"]
"""Rows that compete with each other: those of a user on one calendar day, or those of a request of a user."""
OovDropout = Literal["measured"] | Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["float32", "bfloat16"]
Tracker = Literal["tensorboard", "mlflow"]


class LogsConfig(StrictModel):
    """Locations of the log and its side tables, and the time bounds of its splits.

    Relative paths start at the folder of the ranker.toml. URIs are allowed.

    Attributes:
        path: Parquet file, or folder of Parquet files with or without hive partitions; or a list of them, where a later
            one replaces rows of earlier ones with the same request and item.
        users: Parquet table of user features by id; not needed if the log contains all of them.
        items: Parquet table of item features by id; not needed if the log contains all of them.
        train_from: inclusive start of the training split; earlier rows are not read.
        validation_from: inclusive start of the validation split and end of the training split.
        test_from: inclusive start of the test split.
        test_until: exclusive end of the test split; later rows are not read. Default: the end of the log. If
            it equals ``test_from``, there is no test split.
        allow_missing_days: whether days may be missing between the first and the last day of the log.
        max_bad_rows: maximum fraction of bad rows.
    """

    path: Uris
    users: Uri | None = None
    items: Uri | None = None
    train_from: Timestamp | None = None
    validation_from: Timestamp
    test_from: Timestamp
    test_until: Timestamp | None = None
    allow_missing_days: bool = False
    max_bad_rows: Fraction = 0.01

    @model_validator(mode="after")
    def _check_split_order(self) -> Self:
        if (self.validation_from.tzinfo is None) != (self.test_from.tzinfo is None):
            raise ValueError("validation_from and test_from: give both a time zone or neither")
        if self.validation_from >= self.test_from:
            raise ValueError("validation_from must be earlier than test_from")
        if self.train_from is not None:
            if (self.train_from.tzinfo is None) != (self.validation_from.tzinfo is None):
                raise ValueError("train_from and validation_from: give both a time zone or neither")
            if self.train_from >= self.validation_from:
                raise ValueError("train_from must be earlier than validation_from")
        if self.test_until is not None:
            if (self.test_until.tzinfo is None) != (self.test_from.tzinfo is None):
                raise ValueError("test_from and test_until: give both a time zone or neither")
            if self.test_until < self.test_from:
                raise ValueError("test_until must not be earlier than test_from")
        return self


class ConvergenceConfig(StrictModel):
    """Schedule that makes the gates binary; points in time are fractions of all training steps.

    Attributes:
        gamma: width of the fractional region of the smooth-step function before annealing.
        final_gamma: width at the end of annealing; the width decreases geometrically.
        anneal_from: start of annealing.
        anneal_until: end of annealing. The gates are then snapped to binary codes, and training continues with the
            selected experts.
        hold_alpha_until: end of the phase in which all selectors of a task have equal weights.
        overlap_until: point at which the penalty on selectors that choose the same expert has decreased to 0.
        budget_at: point at which the experts beyond ``model.gate.experts_budget`` are removed.
    """

    gamma: PositiveFloat = 1.0
    final_gamma: PositiveFloat = 1e-3
    anneal_from: Fraction = 0.25
    anneal_until: Fraction = 0.6
    hold_alpha_until: Fraction = 0.5
    overlap_until: Annotated[float, Field(gt=0, le=1)] = 0.8
    budget_at: Fraction = 0.25

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.anneal_from < self.anneal_until < 1:
            raise ValueError(
                "choose anneal_from < anneal_until < 1, so that training continues with the selected experts"
            )
        if self.final_gamma > self.gamma:
            raise ValueError("final_gamma must not be larger than gamma")
        return self


class LearningRates(StrictModel):
    """Learning rates by part of the model.

    A static gate needs about ten times the rate of the trunk; a per-example gate uses the rate of the trunk. All rates
    decrease linearly to 0 after the experts are selected.

    Attributes:
        embeddings: rate of row-wise Adagrad for the embedding tables.
        trunk: rate of AdamW for experts, towers and per-example gates.
        gates: rate of AdamW for static gates.
    """

    embeddings: PositiveFloat = 5e-2
    trunk: PositiveFloat = 1e-3
    gates: PositiveFloat = 1e-2


class RankingLossConfig(StrictModel):
    """Pairwise loss on the order of rows that compete with each other, in addition to the loss of each row.

    Attributes:
        weight: weight of the term, relative to the losses of the rows.
        within: rows that compete: those of a user on one calendar day, or of one request (``columns.request``).
    """

    weight: PositiveFloat = 0.5
    within: RankingGroup = "user_day"


class TrainingConfig(StrictModel):
    """Settings of the training loop.

    Attributes:
        epochs: passes over the training split; embeddings of ids overfit in the second pass on most logs.
        batch_size: rows per step over all ranks; a small log needs a smaller batch, to have enough steps to converge.
        learning_rate: learning rates by part of the model.
        weight_decay: weight decay of experts and towers; gates have none, because it would pull codes from binary.
        warmup: fraction of the steps over which the learning rates increase from 0.
        oov_dropout: probability that an id becomes OOV in training, in every feature with a vocabulary; ``measured``
            for the share of OOV among the feature's ids in the validation split, at most 0.3.
        history_dropout: probability that an id is left out of a history in training.
        clip_norm: maximum norm of the gradients of all AdamW parameters; None for no clipping.
        precision: number format of matrix products; gates, losses and weights are always float32.
        shuffle_rows: size of the shuffle buffer in rows; up to four times as many rows are in memory in total.
        readers: threads that read and encode rows ahead of the trainer.
        checks_per_epoch: number of validations and checkpoints per epoch.
        keep_checkpoints: maximum number of checkpoints to keep.
        patience: validations without improvement, counted after the experts are selected, before training stops.
        loss_weighting: ``fixed`` uses the task weights; ``uncertainty`` additionally learns weights.
        ranking_loss: pairwise loss of the binary tasks, which training adds to their loss; None for none.
        teachers: runs of the same log and features; each label is replaced by half of it plus half of the prediction of
            their mean.
        seed: seed of initialization, shuffling and dropout.
        trackers: experiment trackers that receive parameters and metrics.
    """

    epochs: PositiveInt = 1
    batch_size: Annotated[int, Field(ge=2)] = 512
    learning_rate: LearningRates = LearningRates()
    weight_decay: NonNegativeFloat = 0.0
    warmup: Fraction = 0.0
    oov_dropout: OovDropout = "measured"
    history_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    clip_norm: PositiveFloat | None = None
    precision: Precision = "float32"
    shuffle_rows: PositiveInt = 262_144
    readers: PositiveInt = 2
    checks_per_epoch: PositiveInt = 8
    keep_checkpoints: PositiveInt = 2
    patience: PositiveInt = 8
    loss_weighting: Literal["fixed", "uncertainty"] = "fixed"
    ranking_loss: RankingLossConfig | None = None
    teachers: ListOf[Annotated[Path, Strict(False)]] = ()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    trackers: ListOf[Tracker] = ()
    convergence: ConvergenceConfig = ConvergenceConfig()


BaselineName = Literal["constant", "popularity", "user_mean", "linear", "lightgbm"]
"""Names of the baselines; docs/evaluation.md defines them."""


class EvaluationConfig(StrictModel):
    """Settings of ``ranker evaluate``, which can be changed without training again.

    Attributes:
        slices: slices that are evaluated separately, see ``Schema.sliceable``.
        ndcg_at: k of NDCG@k: number of top positions per request.
        bootstrap: bootstrap draws for the intervals; 0 for no intervals.
        baselines: simple models that the model is compared with; an empty list for none.
        importance: whether training ends with the permutation importance of the features.
        users: share of the users whose rows are evaluated.
    """

    slices: ListOf[str] = ()
    ndcg_at: PositiveInt = 10
    bootstrap: NonNegativeInt = 200
    baselines: ListOf[BaselineName] = ("constant", "popularity", "user_mean", "linear", "lightgbm")
    importance: bool = False
    users: Annotated[float, Field(gt=0, le=1)] = 1.0


class ServingConfig(StrictModel):
    """Serving settings that the bundle contains.

    Attributes:
        objective: weight of each task in the ranking score, −1e6 to 1e6 and not all 0; default: the first task only.
    """

    objective: Objective = Field(default_factory=dict)


class Config(Schema):
    """Content of a ``ranker.toml``."""

    logs: LogsConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    serving: ServingConfig = ServingConfig()
    tune: dict[str, Range] = Field(default_factory=dict)

    def without_test_split(self) -> Self:
        """Return a configuration that ends the log where the test split starts, so that a training cannot read it."""
        return self.model_copy(update={"logs": self.logs.model_copy(update={"test_until": self.logs.test_from})})

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        for task in self.serving.objective:
            if task not in self.task_names:
                raise ValueError(
                    f"serving.objective names '{task}', which is not a task; choose from {', '.join(self.task_names)}"
                )
        return self

    @model_validator(mode="after")
    def _check_slices(self) -> Self:
        for name in self.evaluation.slices:
            if name not in self.sliceable:
                raise ValueError(f"evaluation.slices names '{name}'; choose from {', '.join(self.sliceable)}")
        return self

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        convergence = self.training.convergence
        if self.model.experts_budget is not None and convergence.budget_at >= convergence.anneal_until:
            raise ValueError(
                "training.convergence: choose budget_at < anneal_until, "
                "so that tasks choose among the remaining experts"
            )
        return self

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        for feature in self.features:
            if isinstance(feature, NumberFeature) or (not isinstance(feature, CrossFeature) and feature.training_only):
                continue
            if feature.dim % WIDTH_STEP:
                raise ValueError(f"feature '{feature.name}' has dim = {feature.dim}; choose a multiple of {WIDTH_STEP}")
        return self

    @model_validator(mode="after")
    def _check_side_tower(self) -> Self:
        tower = self.model.side_tower
        names = () if tower is None else tower.features
        features = {feature.name: feature for feature in self.features}
        for name in names:
            if name not in features:
                labels = {label for task in self.tasks for label in (task.name, task.label)}
                what = (
                    "a label, not a feature" if name in labels else f"not a feature; choose from {', '.join(features)}"
                )
                raise ValueError(f"model.side_tower.features names '{name}', which is {what}")
            if isinstance(features[name], CrossFeature):
                raise ValueError(
                    f"model.side_tower.features names '{name}', a cross: name its parts, the tower combines them"
                )
        if len(set(names)) < len(names):
            raise ValueError("model.side_tower.features names a feature twice")
        for feature in self.inputs:
            if feature.training_only and feature.name not in names:
                raise ValueError(f"feature '{feature.name}' is training_only: name it in model.side_tower.features")
        if all(feature.training_only for feature in self.inputs):
            raise ValueError("every feature is training_only: no feature is left for serving")
        return self

    @property
    def training_schema(self) -> Schema:
        """Schema of the log that a model is trained on."""
        return Schema(**{key: getattr(self, key) for key in Schema.model_fields})

    @property
    def serving_schema(self) -> Schema:
        """Schema of the bundle: the training schema without features that are only known in training."""
        features = tuple(f for f in self.features if isinstance(f, CrossFeature) or not f.training_only)
        return self.training_schema.model_copy(update={"features": features})

    @property
    def position_schema(self) -> Schema | None:
        """Schema of the position tower (``model.side_tower``), which reads numbers without bins; None without one."""
        if self.model.side_tower is None:
            return None
        schema = self.training_schema.restricted(self.model.side_tower.features)
        features = tuple(
            f.model_copy(update={"bins": 0}) if isinstance(f, NumericFeature) else f for f in schema.features
        )
        return schema.model_copy(update={"features": features})

    @property
    def objective(self) -> dict[str, float]:
        """Objective of the bundle: ``serving.objective`` or its default."""
        return self.serving.objective or {self.task_names[0]: 1.0}

    def write(self, file: Path, header: str = "") -> None:
        """Write all settings, defaults included, with absolute paths; the file is replaced atomically.

        Args:
            file: the TOML file.
            header: comment of one line for the top of the file.
        """
        draft = file.with_name(f".{file.name}.draft")
        comment = f"# {header}\n" if header else ""
        draft.write_text(comment + tomli_w.dumps(self.model_dump(mode="json", exclude_none=True)))
        draft.replace(file)


def load_config(file: Path, overrides: Sequence[str] = (), *, stored: bool = False) -> Config:
    """Read and validate a ranker.toml.

    Args:
        file: the TOML file; relative paths in it start at its folder.
        overrides: settings such as ``training.epochs=3`` in TOML notation; bare words are strings.
        stored: the file belongs to a run that exists; settings that contradict each other are accepted.

    Raises:
        ConfigError: the file cannot be read or its content is invalid; names the key and the reason.
        UsageError: an override does not have the form section.key=value.
    """
    data = read_toml(file, overrides)
    suffix = f" (with --set {' --set '.join(overrides)})" if overrides else ""
    try:
        config = Config.model_validate(data)
        if not stored:
            require_consistent(config)
    except ValidationError as error:
        raise ConfigError(f"{file}: {format_validation_error(error, data, Config)}{suffix}") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}{suffix}") from None
    base = file.absolute().parent
    logs = config.logs
    absolute = {key: _absolute(base, getattr(logs, key)) for key in ("path", "users", "items")}
    training = config.training.model_copy(update={"teachers": tuple(base / run for run in config.training.teachers)})
    return config.model_copy(update={"logs": logs.model_copy(update=absolute), "training": training})


def _absolute(base: Path, where: Uris | None) -> Uris | None:
    """Return locations with relative paths below ``base``."""
    if isinstance(where, tuple):
        return tuple(base / part if isinstance(part, Path) else part for part in where)
    return base / where if isinstance(where, Path) else where
