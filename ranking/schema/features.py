"""The kinds of features."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from ranking.schema.base import ColumnName, ListOf, Name, Owner, StrictModel, with_name


def _id(value: Any) -> Any:
    if not isinstance(value, int | str) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise PydanticCustomError("id", "must be an id: a whole number of 64 bits, text, true or false")
    return value


Id = Annotated[int | str | bool, BeforeValidator(_id)]


class _Input(StrictModel):
    """Something known before the impression, read from one column; default column: the feature's name.

    Attributes:
        training_only: only the side tower reads it; whoever asks for scores does not know it (the position, say).
    """

    name: Name
    column: ColumnName = ""
    owner: Owner
    training_only: bool = False

    @model_validator(mode="before")
    @classmethod
    def _column_defaults_to_name(cls, data: Any) -> Any:
        return with_name(data, "column")


class _Ids(_Input):
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
        return with_name(data, "table")

    @model_validator(mode="after")
    def _one_id_space(self) -> Self:
        if self.hash_buckets is not None and self.min_count > 1:
            raise ValueError("min_count belongs to a vocabulary, hash_buckets replaces it: give one of the two")
        return self


class CategoricalFeature(_Ids):
    """One id per row (integer, string or boolean).

    Attributes:
        default: the id that a null stands for.
    """

    kind: Literal["categorical"]
    default: Id | None = None


class _Pooled(_Ids):
    """A list of ids per row, pooled into one embedding.

    Attributes:
        pooling: mean or sum of the ids' embeddings.
        default: the list that a null stands for; it may be empty.
    """

    pooling: Literal["mean", "sum"] = "mean"
    default: ListOf[Id] | None = None

    @model_validator(mode="after")
    def _default_of_one_type(self) -> Self:
        if len({type(value) for value in self.default or ()}) > 1:
            raise ValueError("default mixes integers and strings: write ids of one type")
        return self


class BagFeature(_Pooled):
    """Ids in no order."""

    kind: Literal["bag"]


class SequenceFeature(_Pooled):
    """Ids in order of time, the newest last, such as a user's last items; it may share the items' table.

    Attributes:
        max_length: so many of the newest are pooled, the older ones are left out.
    """

    kind: Literal["sequence"]
    max_length: PositiveInt = 50


class NumericFeature(_Input):
    """One number per row.

    ``standardise`` scales to mean 0 and variance 1 over the training split, ``log1p`` takes log(1 + x) first, and
    ``none`` leaves the number alone. A missing number becomes the training mean.

    Attributes:
        default: the number that a null stands for, instead of the training mean.
    """

    kind: Literal["numeric"]
    transform: Literal["standardise", "log1p", "none"] = "standardise"
    default: float | None = None

    @model_validator(mode="after")
    def _default_has_a_logarithm(self) -> Self:
        if self.transform == "log1p" and self.default is not None and self.default <= -1:
            raise ValueError(f"default = {self.default:g} is −1 or less, but the transform is log1p")
        return self


class BucketsFeature(_Input):
    """One number per row, cut into buckets, each with an embedding in a table of the feature's own.

    Attributes:
        dim: width of the embedding.
        boundaries: ascending; a number lies in the bucket that starts at the largest boundary ≤ it.
        count: instead of boundaries: so many buckets, each with as many training rows as ties allow.
        default: the number that a null stands for; without it a null has an embedding of its own.
    """

    kind: Literal["buckets"]
    dim: PositiveInt = 16
    boundaries: Annotated[ListOf[float], Field(min_length=1)] | None = None
    count: Annotated[int, Field(ge=2)] | None = None
    default: float | None = None

    @model_validator(mode="after")
    def _cut_one_way(self) -> Self:
        if (self.boundaries is None) == (self.count is None):
            raise ValueError("give boundaries = [...] or count = N, one of the two")
        if any(a >= b for a, b in itertools.pairwise(self.boundaries or ())):
            raise ValueError("boundaries must ascend, without repeats")
        return self

    @property
    def table(self) -> str:
        """Embedding table, shared with no other feature."""
        return self.name


class CrossFeature(StrictModel):
    """The ids of several categorical features taken as one id, hashed into a table of the feature's own.

    It has no column: it is made from its parts, and is missing where one of them is. It belongs to the owner of its
    parts; if they have several, it belongs to the context, since it changes with any of them.

    Attributes:
        of: names of categorical features.
        hash_buckets: rows of the table that the combinations are hashed into.
        dim: width of the embedding.
    """

    name: Name
    kind: Literal["cross"]
    of: Annotated[ListOf[Name], Field(min_length=2)]
    hash_buckets: PositiveInt
    dim: PositiveInt = 16

    @model_validator(mode="after")
    def _parts_differ(self) -> Self:
        if len(set(self.of)) < len(self.of):
            raise ValueError("of names a feature twice")
        return self

    @property
    def table(self) -> str:
        """Embedding table, shared with no other feature."""
        return self.name


PooledFeature = BagFeature | SequenceFeature
"""Several ids a row."""
IdFeature = CategoricalFeature | PooledFeature
"""Ids in a column."""
SingleFeature = CategoricalFeature | BucketsFeature | CrossFeature
"""One embedding a row."""
SparseFeature = SingleFeature | PooledFeature
"""Looked up in an embedding table."""
NumberFeature = NumericFeature | BucketsFeature
"""A number in a column."""
InputFeature = IdFeature | NumberFeature
"""Read from a column of its own."""
Feature = Annotated[
    CategoricalFeature | BagFeature | SequenceFeature | NumericFeature | BucketsFeature | CrossFeature,
    Field(discriminator="kind"),
]
