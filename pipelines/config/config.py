"""``ranker.toml`` as one checked object: the schema, and how to read, train and serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from pipelines.config import toml
from pipelines.config.timestamps import Timestamp
from pipelines.config.uri import Uri
from pipelines.tuning.search_space import Range
from ranking.errors import ConfigError
from ranking.model.mmoe import ModelConfig
from ranking.schema import CrossFeature, ListOf, Schema, StrictModel
from ranking.schema.validation_errors import format_validation_error

Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["float32", "bfloat16"]
Tracker = Literal["tensorboard", "mlflow"]


class LogsConfig(StrictModel):
    """Where the log lies and how time splits it. Paths are relative to the ranker.toml's folder; URIs are allowed.

    Attributes:
        path: Parquet file or folder of them, hive-partitioned or not.
        users: Parquet table of user features by id; may be left out if the log holds them all.
        items: the same for items.
        train_from: first moment of the training split; earlier rows are not read.
        validation_from: first moment of the validation split; everything earlier trains.
        test_from: first moment of the test split.
        allow_missing_days: accept a log that lacks days between its first and its last.
    """

    path: Uri
    users: Uri | None = None
    items: Uri | None = None
    train_from: Timestamp | None = None
    validation_from: Timestamp
    test_from: Timestamp
    allow_missing_days: bool = False

    @model_validator(mode="after")
    def _splits_in_order(self) -> Self:
        if (self.validation_from.tzinfo is None) != (self.test_from.tzinfo is None):
            raise ValueError("validation_from and test_from: give both a time zone or neither")
        if self.validation_from >= self.test_from:
            raise ValueError("validation_from must be earlier than test_from")
        if self.train_from is not None:
            if (self.train_from.tzinfo is None) != (self.validation_from.tzinfo is None):
                raise ValueError("train_from and validation_from: give both a time zone or neither")
            if self.train_from >= self.validation_from:
                raise ValueError("train_from must be earlier than validation_from")
        return self


class ConvergenceConfig(StrictModel):
    """How the gates come to a binary choice; moments are fractions of all training steps.

    Attributes:
        gamma: width of the fractional region while gates explore.
        final_gamma: its width at the end of the ramp, reached geometrically.
        anneal_from: where the ramp starts.
        anneal_until: where it ends; the gates are snapped and only the chosen experts train on.
        hold_alpha_until: until then a task's selectors weigh the same.
        overlap_until: where the penalty on selectors that agree has faded to 0.
        budget_at: where the experts beyond ``model.gate.experts_budget`` are dropped.
    """

    gamma: PositiveFloat = 1.0
    final_gamma: PositiveFloat = 1e-3
    anneal_from: Fraction = 0.25
    anneal_until: Fraction = 0.6
    hold_alpha_until: Fraction = 0.5
    overlap_until: Annotated[float, Field(gt=0, le=1)] = 0.8
    budget_at: Fraction = 0.25

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.anneal_from < self.anneal_until < 1:
            raise ValueError("choose anneal_from < anneal_until < 1, so that the chosen experts train on afterwards")
        if self.final_gamma > self.gamma:
            raise ValueError("final_gamma must not be larger than gamma")
        return self


class LearningRates(StrictModel):
    """Step sizes by part of the model; static gates need about ten times the trunk's, per-example ones theirs.

    They fall linearly to 0 from the moment that the experts are chosen.

    Attributes:
        embeddings: of row-wise Adagrad.
        trunk: AdamW's for experts, towers and per-example gates.
        gates: AdamW's for static gates.
    """

    embeddings: PositiveFloat = 5e-2
    trunk: PositiveFloat = 1e-3
    gates: PositiveFloat = 1e-2


class TrainingConfig(StrictModel):
    """The loop.

    Attributes:
        epochs: passes over the training split; ids overfit in the second one on most logs.
        batch_size: rows a step, of all ranks together; small logs want smaller batches, so that there are enough steps
            to converge.
        learning_rate: by part of the model.
        weight_decay: on experts and towers only; never on gates, whose codes it would pull back from binary.
        warmup: share of the steps over which the learning rates rise from 0.
        clip_norm: largest norm of the gradient of all that AdamW trains; default: not clipped.
        precision: of matrix products; gates, losses and weights stay in float32.
        shuffle_rows: rows that are held in memory and shuffled together; up to four times as many are held in all.
        readers: threads that read and encode rows ahead of the trainer.
        checks_per_epoch: how often the validation loss is measured and a checkpoint written.
        keep_checkpoints: how many there are at most.
        patience: checks without improvement, once the experts are chosen, before training stops.
        loss_weighting: ``fixed``: the tasks' losses count by their weights; ``uncertainty``: by learnt ones too.
        seed: of initialisation, shuffling and dropout.
        trackers: experiment trackers that are told how the training goes.
    """

    epochs: PositiveInt = 1
    batch_size: Annotated[int, Field(ge=2)] = 512
    learning_rate: LearningRates = LearningRates()
    weight_decay: NonNegativeFloat = 0.0
    warmup: Fraction = 0.0
    clip_norm: PositiveFloat | None = None
    precision: Precision = "float32"
    shuffle_rows: PositiveInt = 262_144
    readers: PositiveInt = 2
    checks_per_epoch: PositiveInt = 8
    keep_checkpoints: PositiveInt = 2
    patience: PositiveInt = 8
    loss_weighting: Literal["fixed", "uncertainty"] = "fixed"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    trackers: ListOf[Tracker] = ()
    convergence: ConvergenceConfig = ConvergenceConfig()


class EvaluationConfig(StrictModel):
    """How ``ranker evaluate`` measures; settings of a run, changed without training again.

    Attributes:
        slices: features by whose values the rows are also measured apart, ``new_user`` and ``new_item`` among them.
        ndcg_at: k of NDCG@k, the positions of a request that count.
        bootstrap: draws of whole users for the intervals; 0 gives none.
    """

    slices: ListOf[str] = ()
    ndcg_at: PositiveInt = 10
    bootstrap: NonNegativeInt = 200


class ServingConfig(StrictModel):
    """What the bundle tells the service.

    Attributes:
        objective: task → weight in the score that sorts; default: the first task alone.
    """

    objective: dict[str, float] = Field(default_factory=dict)


class Config(Schema):
    """A whole ``ranker.toml``."""

    logs: LogsConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    serving: ServingConfig = ServingConfig()
    tune: dict[str, Range] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _objective_names_tasks(self) -> Self:
        for task in self.serving.objective:
            if task not in self.task_names:
                raise ValueError(f"serving.objective names '{task}', which is no task: {', '.join(self.task_names)}")
        return self

    @model_validator(mode="after")
    def _slices_exist(self) -> Self:
        for name in self.evaluation.slices:
            if name not in self.sliceable:
                raise ValueError(f"evaluation.slices names '{name}'; choose from {', '.join(self.sliceable)}")
        return self

    @model_validator(mode="after")
    def _budget_before_the_ramp_ends(self) -> Self:
        convergence = self.training.convergence
        if self.model.experts_budget is not None and convergence.budget_at >= convergence.anneal_until:
            raise ValueError(
                "training.convergence: choose budget_at < anneal_until, so that tasks can choose among the experts left"
            )
        return self

    @model_validator(mode="after")
    def _side_tower_reads_what_is_training_only(self) -> Self:
        tower = self.model.side_tower
        read = () if tower is None else tower.features
        known = {feature.name: feature for feature in self.features}
        for name in read:
            if name not in known:
                labels = {label for task in self.tasks for label in (task.name, task.label)}
                what = "a label, not a feature" if name in labels else f"no feature: {', '.join(known)}"
                raise ValueError(f"model.side_tower.features names '{name}', which is {what}")
            if isinstance(known[name], CrossFeature):
                raise ValueError(
                    f"model.side_tower.features names '{name}', a cross: name its parts, the tower mixes them"
                )
        if len(set(read)) < len(read):
            raise ValueError("model.side_tower.features names a feature twice")
        for feature in self.inputs:
            if feature.training_only and feature.name not in read:
                raise ValueError(f"feature '{feature.name}' is training_only: name it in model.side_tower.features")
        if all(feature.training_only for feature in self.inputs):
            raise ValueError("every feature is training_only: nothing is left to score by")
        return self

    @property
    def training_schema(self) -> Schema:
        """What the log holds that a model is trained on."""
        return Schema(name=self.name, columns=self.columns, features=self.features, tasks=self.tasks)

    @property
    def serving_schema(self) -> Schema:
        """The part that a bundle carries: what is known when scores are asked for."""
        served = tuple(f for f in self.features if isinstance(f, CrossFeature) or not f.training_only)
        return self.training_schema.model_copy(update={"features": served})

    @property
    def position_schema(self) -> Schema | None:
        """What the side tower reads; None without one."""
        if self.model.side_tower is None:
            return None
        read = tuple(f for f in self.features if f.name in self.model.side_tower.features)
        return self.training_schema.model_copy(update={"features": read})

    @property
    def objective(self) -> dict[str, float]:
        """The objective with its default filled in."""
        return self.serving.objective or {self.task_names[0]: 1.0}

    def write(self, file: Path) -> None:
        """Writes every setting, defaults included, with absolute paths; a reader sees all of the file or none of it."""
        draft = file.with_name(f".{file.name}.draft")
        draft.write_text(tomli_w.dumps(self.model_dump(mode="json", exclude_none=True)))
        draft.replace(file)


def load_config(file: Path, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Reads a ranker.toml.

    Args:
        file: the TOML file; its folder is where relative paths start.
        overrides: settings such as ``training.epochs=3``, in TOML's notation (bare words are strings).

    Raises:
        ConfigError: the file cannot be read or does not describe a ranker; says where and why.
        UsageError: an override that is not written as section.key=value.
    """
    data = toml.read_toml(file, overrides)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        given = f" (with --set {' --set '.join(overrides)})" if overrides else ""
        raise ConfigError(f"{file}: {format_validation_error(error, data)}{given}") from None
    base = file.absolute().parent
    logs = config.logs
    places = {key: getattr(logs, key) for key in ("path", "users", "items")}
    here = {key: base / place for key, place in places.items() if isinstance(place, Path)}
    return config.model_copy(update={"logs": logs.model_copy(update=here)})
