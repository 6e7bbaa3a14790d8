"""The contract: which features a ranker reads and which tasks it predicts.

One pydantic model, written by the user in ``ranker.toml``. Logs, model, bundle and HTTP requests all obey it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

Owner = Literal["user", "item", "context"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""A model's name is a folder of the repository and a part of URLs."""
ColumnName = Annotated[str, Field(min_length=1)]


class Record(BaseModel):
    """Base of every configuration model: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _with_default(data: Any, key: str) -> Any:
    """The document with ``key`` set to its name where it is left out."""
    return {key: data["name"], **data} if isinstance(data, dict) and "name" in data else data


class _Feature(Record):
    """Something known before the impression, read from one column; default column: the feature's name."""

    name: Name
    column: ColumnName = ""
    owner: Owner

    @model_validator(mode="before")
    @classmethod
    def _column_defaults_to_name(cls, data: Any) -> Any:
        return _with_default(data, "column")


class _Sparse(_Feature):
    """A feature whose values are ids, looked up in an embedding table.

    Attributes:
        min_count: ids seen fewer times in the training split share the out-of-vocabulary row.
        hash_buckets: if set, ids are hashed into so many rows and no vocabulary is kept.
        dim: width of the embedding.
        table: features that name the same table share its ids and its embeddings; default: a table of its own.
    """

    dim: PositiveInt = 16
    min_count: PositiveInt = 1
    hash_buckets: PositiveInt | None = None
    table: Name = ""

    @model_validator(mode="before")
    @classmethod
    def _table_defaults_to_name(cls, data: Any) -> Any:
        return _with_default(data, "table")

    @model_validator(mode="after")
    def _one_id_space(self) -> Self:
        if self.hash_buckets is not None and self.min_count > 1:
            raise ValueError("min_count belongs to a vocabulary, hash_buckets replaces it: give one of the two")
        return self


class CategoricalFeature(_Sparse):
    """One id per row (integer, string or boolean)."""

    kind: Literal["categorical"]


class BagFeature(_Sparse):
    """A list of ids per row, pooled into one embedding."""

    kind: Literal["bag"]
    pooling: Literal["mean", "sum"] = "mean"


class NumericFeature(_Feature):
    """One number per row.

    ``standardise`` scales to mean 0 and variance 1 over the training split, ``log1p`` takes log(1 + x) first, and
    ``none`` leaves the number alone. A missing number becomes the training mean.
    """

    kind: Literal["numeric"]
    transform: Literal["standardise", "log1p", "none"] = "standardise"


SparseFeature = CategoricalFeature | BagFeature
Feature = Annotated[CategoricalFeature | BagFeature | NumericFeature, Field(discriminator="kind")]


class Task(Record):
    """What is predicted: a probability (``binary``) or a number (``regression``).

    A null label is masked: the row neither trains nor evaluates this task. A regression with ``transform = "log1p"``
    is trained, scored and evaluated on log(1 + label).

    Attributes:
        label: the label's column; default: the task's name.
        weight: weight of the task's loss in the sum.
        group: a name for tasks that belong together, such as engagement or satisfaction; reports use it.
        calibration: how a binary task's probabilities are made true on the validation split after training.
    """

    name: Name
    kind: Literal["binary", "regression"]
    label: ColumnName = ""
    transform: Literal["none", "log1p"] = "none"
    weight: PositiveFloat = 1.0
    group: str | None = None
    calibration: Literal["none", "platt", "isotonic"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _label_defaults_to_name(cls, data: Any) -> Any:
        return _with_default(data, "label")

    @model_validator(mode="after")
    def _settings_fit_kind(self) -> Self:
        if self.kind == "binary" and self.transform != "none":
            raise ValueError("a binary label takes no transform")
        if self.kind == "regression" and self.calibration != "none":
            raise ValueError("only a binary task has probabilities to calibrate")
        return self


class Columns(Record):
    """The columns that say when an impression was, who saw it, what was shown, and (optional) in which request."""

    time: str = "time"
    user: str = "user_id"
    item: str = "item_id"
    request: ColumnName | None = None


class Schema(Record):
    """Features and tasks of one ranker; see the module's docstring."""

    name: Annotated[str, Field(pattern=MODEL_NAME)]
    columns: Columns = Columns()
    features: Annotated[tuple[Feature, ...], Field(min_length=1)]
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]

    @field_validator("features", "tasks")
    @classmethod
    def _names_are_unique(cls, things: tuple[Any, ...]) -> tuple[Any, ...]:
        for name in _repeated(thing.name for thing in things):
            raise ValueError(f"'{name}' is declared twice: give each its own name")
        return things

    @model_validator(mode="after")
    def _labels_are_no_features(self) -> Self:
        labels = {task.label: task.name for task in self.tasks}
        for feature in self.features:
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
        for feature in self.features:
            for owner, column in (("user", self.columns.user), ("item", self.columns.item)):
                if feature.column == column and feature.owner != owner:
                    raise ValueError(
                        f"feature '{feature.name}' reads the {owner} id column '{column}': its owner must be {owner}"
                    )
        return self

    @model_validator(mode="after")
    def _one_owner_a_column(self) -> Self:
        owners: dict[str, str] = {}
        for feature in self.features:
            if owners.setdefault(feature.column, feature.owner) != feature.owner:
                raise ValueError(
                    f"column '{feature.column}' has two owners: features that share a column share its owner"
                )
        return self

    @model_validator(mode="after")
    def _shared_tables_agree(self) -> Self:
        first: dict[str, SparseFeature] = {}
        for feature in self.sparse:
            other = first.setdefault(feature.table, feature)
            for key in ("dim", "min_count", "hash_buckets"):
                if getattr(other, key) != getattr(feature, key):
                    raise ValueError(
                        f"features '{other.name}' and '{feature.name}' share table '{feature.table}', not {key}"
                    )
        pooling: dict[str, BagFeature] = {}
        for bag in self.bags:
            if pooling.setdefault(bag.table, bag).pooling != bag.pooling:
                raise ValueError(
                    f"bags '{pooling[bag.table].name}' and '{bag.name}' share table '{bag.table}' but differ in pooling"
                )
        return self

    @property
    def categoricals(self) -> list[CategoricalFeature]:
        """Features with one id per row, in order of declaration."""
        return [f for f in self.features if isinstance(f, CategoricalFeature)]

    @property
    def bags(self) -> list[BagFeature]:
        """Features with a list of ids per row, in order of declaration."""
        return [f for f in self.features if isinstance(f, BagFeature)]

    @property
    def sparse(self) -> list[SparseFeature]:
        """Categorical features, then bags: the order of their embeddings in the model's input."""
        return [*self.categoricals, *self.bags]

    @property
    def numerics(self) -> list[NumericFeature]:
        """Features with one number per row, in order of declaration."""
        return [f for f in self.features if isinstance(f, NumericFeature)]

    @property
    def tables(self) -> dict[str, SparseFeature]:
        """Embedding table name → the first feature that uses it (all that share a table agree)."""
        tables: dict[str, SparseFeature] = {}
        for feature in self.sparse:
            tables.setdefault(feature.table, feature)
        return tables

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks, in order of declaration."""
        return [task.name for task in self.tasks]

    @property
    def sliceable(self) -> list[str]:
        """By what rows can be measured apart: features of one value a row, and whether user or item is new."""
        new = [f"new_{owner}" for owner in ("user", "item") if self.id_feature(owner) is not None]
        return [*(f.name for f in self.features if f.kind in ("categorical", "numeric")), *new]

    def id_feature(self, owner: Owner) -> CategoricalFeature | None:
        """The feature that knows the ids seen in training; None if ids are no feature, or hashed."""
        for feature in self.categoricals:
            if feature.column == self.id_column(owner) and feature.hash_buckets is None:
                return feature
        return None

    def id_column(self, owner: Owner) -> str | None:
        """Column that holds the owner's id; None for the context, which has no id."""
        return {"user": self.columns.user, "item": self.columns.item}.get(owner)

    def owned_columns(self, owner: Owner) -> list[str]:
        """Feature columns of one owner, its id column left out, without repeats."""
        columns = (f.column for f in self.features if f.owner == owner)
        return [c for c in dict.fromkeys(columns) if c != self.id_column(owner)]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
