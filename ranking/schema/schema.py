"""The whole contract: columns, features and tasks that fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from ranking.schema.base import ColumnName, ListOf, ModelName, Owner, StrictModel
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
    """The columns that say when an impression was, who saw it, and what was shown.

    Attributes:
        request: which rows one request showed together; optional.
        weight: how much a row counts in every task's loss, ≥ 0; a null counts 1. Default: all rows count 1.
    """

    time: str = "time"
    user: str = "user_id"
    item: str = "item_id"
    request: ColumnName | None = None
    weight: ColumnName | None = None


class Schema(StrictModel):
    """Features and tasks of one ranker; see the package's docstring."""

    name: ModelName
    columns: Columns = Columns()
    features: Annotated[ListOf[Feature], Field(min_length=1)]
    tasks: Annotated[ListOf[Task], Field(min_length=1)]

    @field_validator("features", "tasks")
    @classmethod
    def _names_are_unique(cls, things: tuple[Any, ...]) -> tuple[Any, ...]:
        for name in _repeated(thing.name for thing in things):
            raise ValueError(f"'{name}' is declared twice: give each its own name")
        return things

    @model_validator(mode="after")
    def _labels_are_no_features(self) -> Self:
        labels = {task.label: task.name for task in self.tasks}
        for feature in self.inputs:
            if feature.column in labels:
                raise ValueError(
                    f"feature '{feature.name}' reads column '{feature.column}', the label of task "
                    f"'{labels[feature.column]}': what happens after the impression cannot be a feature"
                )
        for label in _repeated(task.label for task in self.tasks):
            raise ValueError(f"two tasks share the label column '{label}': drop one of them")
        for column in (self.columns.user, self.columns.item, self.columns.time, self.columns.request):
            if column in labels:
                raise ValueError(f"task '{labels[column]}' has the id or time column '{column}' as its label")
        return self

    @model_validator(mode="after")
    def _id_features_belong_to_their_owner(self) -> Self:
        for feature in self.inputs:
            for owner, column in (("user", self.columns.user), ("item", self.columns.item)):
                if feature.column == column and feature.owner != owner:
                    raise ValueError(
                        f"feature '{feature.name}' reads the {owner} id column '{column}': its owner must be {owner}"
                    )
        return self

    @model_validator(mode="after")
    def _one_owner_a_column(self) -> Self:
        owners: dict[str, str] = {}
        for feature in self.inputs:
            if owners.setdefault(feature.column, feature.owner) != feature.owner:
                raise ValueError(
                    f"column '{feature.column}' has two owners: features that share a column share its owner"
                )
        return self

    @model_validator(mode="after")
    def _training_only_columns_stay_so(self) -> Self:
        of_column: dict[str, InputFeature] = {}
        for feature in self.inputs:
            other = of_column.setdefault(feature.column, feature)
            if other.training_only != feature.training_only:
                raise ValueError(
                    f"features '{other.name}' and '{feature.name}' share column '{feature.column}', not training_only: "
                    "what is unknown when scores are asked for cannot be a feature"
                )
        return self

    @model_validator(mode="after")
    def _crosses_have_parts(self) -> Self:
        kinds = {feature.name: feature for feature in self.features}
        for cross in self.crosses:
            for name in cross.of:
                part = kinds.get(name)
                if part is None:
                    raise ValueError(f"cross '{cross.name}' is of '{name}', which is no feature: {', '.join(kinds)}")
                if not isinstance(part, CategoricalFeature):
                    raise ValueError(
                        f"cross '{cross.name}' is of '{name}', a {part.kind} feature: cross categorical ones"
                    )
                if part.training_only:
                    raise ValueError(
                        f"cross '{cross.name}' is of '{name}', which is training_only: only the side tower reads those"
                    )
        return self

    @model_validator(mode="after")
    def _shared_tables_agree(self) -> Self:
        first: dict[str, SparseFeature] = {}
        pooling: dict[str, PooledFeature] = {}
        for feature in self.sparse:
            other = first.setdefault(feature.table, feature)
            if other is feature:
                pass
            elif not (isinstance(feature, IdFeature) and isinstance(other, IdFeature)):
                alone = other if isinstance(feature, IdFeature) else feature
                raise ValueError(
                    f"features '{other.name}' and '{feature.name}' share table '{feature.table}', "
                    f"but a {alone.kind} feature has a table of its own: name another"
                )
            else:
                for key in ("dim", "min_count", "hash_buckets"):
                    if getattr(other, key) != getattr(feature, key):
                        raise ValueError(
                            f"features '{other.name}' and '{feature.name}' share table '{feature.table}', not {key}"
                        )
        for bag in self.bags:
            if pooling.setdefault(bag.table, bag).pooling != bag.pooling:
                raise ValueError(
                    f"bags '{pooling[bag.table].name}' and '{bag.name}' share table '{bag.table}' but differ in pooling"
                )
        return self

    def restricted(self, names: Collection[str]) -> Self:
        """The same with these features only, in order of declaration; whoever names a cross names its parts too."""
        return self.model_copy(update={"features": tuple(f for f in self.features if f.name in names)})

    @property
    def inputs(self) -> list[InputFeature]:
        """Features that a log or a request gives, each in its column: all but crosses, in order of declaration."""
        return [f for f in self.features if not isinstance(f, CrossFeature)]

    @property
    def crosses(self) -> list[CrossFeature]:
        """Features made from other features, in order of declaration."""
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
        """Features with one embedding, then those with a list: the order of their embeddings in the model's input."""
        return [*self.categoricals, *self.bags]

    @property
    def numerics(self) -> list[NumericFeature]:
        """Features with one number per row that the model reads as it is, in order of declaration."""
        return [f for f in self.features if isinstance(f, NumericFeature)]

    @property
    def numbers(self) -> list[NumberFeature]:
        """Features with one number per row, cut into buckets or not, in order of declaration."""
        return [f for f in self.features if isinstance(f, NumberFeature)]

    @property
    def tables(self) -> dict[str, SparseFeature]:
        """Embedding table name → the first feature that uses it (all that share a table agree)."""
        tables: dict[str, SparseFeature] = {}
        for feature in self.sparse:
            tables.setdefault(feature.table, feature)
        return tables

    @property
    def owners(self) -> set[Owner]:
        """Whose features there are."""
        return {feature.owner for feature in self.inputs}

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks, in order of declaration."""
        return [task.name for task in self.tasks]

    @property
    def sliceable(self) -> list[str]:
        """By what rows can be measured apart: features of one id or number a row, and whether user or item is new."""
        new = [f"new_{owner}" for owner in ("user", "item") if self.id_feature(owner) is not None]
        single = (f for f in self.inputs if not isinstance(f, PooledFeature) and not f.training_only)
        return [*(f.name for f in single), *new]

    def id_feature(self, owner: Owner) -> CategoricalFeature | None:
        """The feature that knows the ids seen in training; None if ids are no feature, or hashed."""
        ids = [f for f in self.features if isinstance(f, CategoricalFeature) and f.hash_buckets is None]
        return next((f for f in ids if f.column == self.id_column(owner)), None)

    def id_column(self, owner: Owner) -> str | None:
        """Column that holds the owner's id; None for the context, which has no id."""
        return {"user": self.columns.user, "item": self.columns.item}.get(owner)

    def columns_of(self, owner: Owner) -> list[str]:
        """Feature columns of one owner, its id column left out, without repeats."""
        columns = (f.column for f in self.inputs if f.owner == owner)
        return [c for c in dict.fromkeys(columns) if c != self.id_column(owner)]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
