"""Columns, features and tasks of a ranker, and the checks that they are consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ranking.schema.base import ID_OWNERS, ColumnName, ListOf, ModelName, Owner, StrictModel
from ranking.schema.counters import Counter as ImpressionCounter
from ranking.schema.counters import History, check_counter, check_history, counter_features
from ranking.schema.features import (
    CategoricalFeature,
    CrossFeature,
    Feature,
    IdFeature,
    InputFeature,
    NumberFeature,
    NumericFeature,
    PooledFeature,
    SingleFeature,
    SparseFeature,
)
from ranking.schema.tasks import Task


class Columns(StrictModel):
    """Names of the log columns that identify an impression.

    Attributes:
        time: column of the time of the impression.
        user: column of the user id.
        item: column of the item id.
        request: column of the request id, which rows shown together share; optional.
        weight: column of the weight of a row in every task's loss, ≥ 0; null means 1. Default: every weight is 1.
    """

    time: str = "time"
    user: str = "user_id"
    item: str = "item_id"
    request: ColumnName | None = None
    weight: ColumnName | None = None


class Schema(StrictModel):
    """Features and tasks of one ranker.

    Attributes:
        name: name of the model.
        columns: names of the log columns that identify an impression.
        counters: sums over earlier impressions; their features are among ``features``.
        histories: last items of users; their features are among ``features``.
        features: input features, followed by those of counters and histories.
        tasks: prediction tasks.
    """

    name: ModelName
    columns: Columns = Columns()
    counters: ListOf[ImpressionCounter] = ()
    histories: ListOf[History] = ()
    features: Annotated[ListOf[Feature], Field(min_length=1)]
    tasks: Annotated[ListOf[Task], Field(min_length=1)]

    @field_validator("features")
    @classmethod
    def _add_counter_features(cls, declared: tuple[Feature, ...], info: ValidationInfo) -> tuple[Feature, ...]:
        counters, histories = info.data.get("counters", ()), info.data.get("histories", ())
        return (*declared, *counter_features(declared, counters, histories))

    @field_validator("counters", "histories", "features", "tasks")
    @classmethod
    def _check_names_are_unique(cls, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        for name in _duplicates(entry.name for entry in entries):
            raise ValueError(f"'{name}' is declared twice: names must be unique")
        return entries

    @model_validator(mode="after")
    def _check_counters_and_histories(self) -> Self:
        for counter in self.counters:
            check_counter(counter, self.features, self.task_names, self.counter_columns)
        if self.histories and self.key_feature("user") is None:
            raise ValueError(
                f"history '{self.histories[0].name}': no feature reads the user ids: declare a categorical feature "
                f"with column = '{self.columns.user}'"
            )
        for history in self.histories:
            check_history(history, self.features, [task.name for task in self.tasks if task.kind == "binary"])
        return self

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        labels = {task.label: task.name for task in self.tasks}
        for feature in self.inputs:
            if feature.column in labels:
                raise ValueError(
                    f"feature '{feature.name}' reads column '{feature.column}', the label of task "
                    f"'{labels[feature.column]}': a label is unknown before the impression"
                )
        for label in _duplicates(task.label for task in self.tasks):
            raise ValueError(f"two tasks share the label column '{label}': remove one of them")
        for column in (self.columns.user, self.columns.item, self.columns.time, self.columns.request):
            if column in labels:
                raise ValueError(f"task '{labels[column]}' has the id or time column '{column}' as its label")
        return self

    @model_validator(mode="after")
    def _check_owners_of_id_columns(self) -> Self:
        for feature in self.inputs:
            for owner, column in (("user", self.columns.user), ("item", self.columns.item)):
                if feature.column == column and feature.owner != owner:
                    raise ValueError(
                        f"feature '{feature.name}' reads the {owner} id column '{column}': its owner must be {owner}"
                    )
        return self

    @model_validator(mode="after")
    def _check_one_owner_per_column(self) -> Self:
        owners: dict[str, str] = {}
        for feature in self.inputs:
            if owners.setdefault(feature.column, feature.owner) != feature.owner:
                raise ValueError(
                    f"column '{feature.column}' has two owners: features that share a column must have the same owner"
                )
        return self

    @model_validator(mode="after")
    def _check_one_shape_per_column(self) -> Self:
        features: dict[str, InputFeature] = {}
        for feature in self.inputs:
            other = features.setdefault(feature.column, feature)
            if isinstance(other, PooledFeature) != isinstance(feature, PooledFeature):
                raise ValueError(
                    f"features '{other.name}' ({other.kind}) and '{feature.name}' ({feature.kind}) share column "
                    f"'{feature.column}', which holds either lists or single values: read two columns"
                )
        return self

    @model_validator(mode="after")
    def _check_training_only_columns(self) -> Self:
        features: dict[str, InputFeature] = {}
        for feature in self.inputs:
            other = features.setdefault(feature.column, feature)
            if other.training_only != feature.training_only:
                raise ValueError(
                    f"features '{other.name}' and '{feature.name}' share column '{feature.column}' but differ in "
                    "training_only: a column that is unknown when serving cannot be a feature"
                )
        return self

    @model_validator(mode="after")
    def _check_crosses(self) -> Self:
        features = {feature.name: feature for feature in self.features}
        for cross in self.crosses:
            for name in cross.of:
                part = features.get(name)
                if part is None:
                    raise ValueError(
                        f"cross '{cross.name}' combines '{name}', which is not a feature: "
                        f"choose from {', '.join(features)}"
                    )
                if not isinstance(part, CategoricalFeature):
                    raise ValueError(
                        f"cross '{cross.name}' combines '{name}', a {part.kind} feature: use categorical features"
                    )
                if part.training_only:
                    raise ValueError(
                        f"cross '{cross.name}' combines '{name}', which is training_only: only side_tower can read it"
                    )
        return self

    @model_validator(mode="after")
    def _check_shared_tables(self) -> Self:
        first: dict[str, SparseFeature] = {}
        for feature in self.sparse:
            other = first.setdefault(feature.table, feature)
            if other is feature:
                pass
            elif not (isinstance(feature, IdFeature) and isinstance(other, IdFeature)):
                unshareable = other if isinstance(feature, IdFeature) else feature
                raise ValueError(
                    f"features '{other.name}' and '{feature.name}' share table '{feature.table}', "
                    f"but a {unshareable.kind} feature cannot share its table: name another table"
                )
            else:
                for key in ("dim", "min_count", "hash_buckets"):
                    if getattr(other, key) != getattr(feature, key):
                        raise ValueError(
                            f"features '{other.name}' and '{feature.name}' share table '{feature.table}' "
                            f"but differ in {key}"
                        )
        return self

    def restricted(self, names: Collection[str]) -> Self:
        """Return the schema with these features only, without counters and histories.

        ``names`` must include the parts of each cross that it includes.
        """
        features = tuple(feature for feature in self.features if feature.name in names)
        return self.model_copy(update={"features": features, "counters": (), "histories": ()})

    @property
    def inputs(self) -> list[InputFeature]:
        """Features with a column in the log or the request (all but crosses), in order of declaration."""
        return [f for f in self.features if not isinstance(f, CrossFeature)]

    @property
    def counter_features(self) -> list[InputFeature]:
        """Counter features: those of counters and histories, whose columns are computed and not read from a log."""
        return [feature for feature in self.inputs if feature.name in self.counter_columns]

    @property
    def counter_columns(self) -> set[str]:
        """Columns of counters and histories."""
        names = {name for counter in self.counters for name in counter.columns}
        return names | {history.name for history in self.histories}

    @property
    def logged(self) -> Self:
        """The schema without counters, histories and the features that read their columns."""
        columns = self.counter_columns
        names = {feature.name for feature in self.inputs if feature.column not in columns}
        return self.restricted(names | {cross.name for cross in self.crosses}) if columns else self

    @property
    def key_parts(self) -> set[str]:
        """Names of the features whose ids form keys of counters and histories."""
        names = {name for counter in self.counters for name in counter.of}
        user = self.key_feature("user")
        return names | ({user.name} if self.histories and user is not None else set())

    @property
    def crosses(self) -> list[CrossFeature]:
        """Crosses, in order of declaration."""
        return [f for f in self.features if isinstance(f, CrossFeature)]

    @property
    def categoricals(self) -> list[SingleFeature]:
        """Features with one embedding per row (categorical, buckets, cross), in order of declaration."""
        return [f for f in self.features if isinstance(f, SingleFeature)]

    @property
    def bags(self) -> list[PooledFeature]:
        """Features with a list of ids per row (bag, sequence), in order of declaration."""
        return [f for f in self.features if isinstance(f, PooledFeature)]

    @property
    def sparse(self) -> list[SparseFeature]:
        """``categoricals``, then ``bags``: the order of the embeddings in the model's input."""
        return [*self.categoricals, *self.bags]

    @property
    def numerics(self) -> list[NumericFeature]:
        """Features with one number per row that are not divided into buckets, in order of declaration."""
        return [f for f in self.features if isinstance(f, NumericFeature)]

    @property
    def numbers(self) -> list[NumberFeature]:
        """Features with one number per row, in buckets or not, in order of declaration."""
        return [f for f in self.features if isinstance(f, NumberFeature)]

    @property
    def tables(self) -> dict[str, SparseFeature]:
        """First feature of each embedding table, by table name; features that share a table have the same settings."""
        tables: dict[str, SparseFeature] = {}
        for feature in self.sparse:
            tables.setdefault(feature.table, feature)
        return tables

    @property
    def owners(self) -> set[Owner]:
        """Owners that have features."""
        return {feature.owner for feature in self.inputs}

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks, in order of declaration."""
        return [task.name for task in self.tasks]

    @property
    def sliceable(self) -> list[str]:
        """Names of the slices of an evaluation.

        These are features with one value per row, ``new_user``, ``new_item`` and ``missing``. A feature of the same
        name takes precedence.
        """
        others = [f"new_{owner}" for owner in ID_OWNERS if self.id_feature(owner) is not None]
        others += ["missing"] if any(map(self.columns_of, ID_OWNERS)) else []
        single = [f.name for f in self.inputs if not isinstance(f, PooledFeature) and not f.training_only]
        return [*single, *(name for name in others if name not in single)]

    def id_feature(self, owner: Owner) -> CategoricalFeature | None:
        """Return the feature whose vocabulary holds the owner's ids; None if ids are hashed or not a feature."""
        ids = [f for f in self.features if isinstance(f, CategoricalFeature) and f.hash_buckets is None]
        return next((f for f in ids if f.column == self.id_column(owner)), None)

    def key_feature(self, owner: Owner) -> CategoricalFeature | None:
        """Return the feature that reads the owner's ids; None if they are not a feature."""
        ids = (feature for feature in self.features if isinstance(feature, CategoricalFeature))
        return next((feature for feature in ids if feature.column == self.id_column(owner)), None)

    def id_column(self, owner: Owner) -> str | None:
        """Return the name of the owner's id column; None for the context, which has no id."""
        return {"user": self.columns.user, "item": self.columns.item}.get(owner)

    def columns_of(self, owner: Owner) -> list[str]:
        """Return the columns of one owner that can be looked up by id, without duplicates.

        These are its feature columns without the id column and without those of counters and histories.
        """
        counter_columns = self.counter_columns
        columns = (f.column for f in self.inputs if f.owner == owner and f.column not in counter_columns)
        return [c for c in dict.fromkeys(columns) if c != self.id_column(owner)]


def _duplicates(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
