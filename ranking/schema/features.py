"""Kinds of features."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from ranking.schema.base import ColumnName, FeatureName, ListOf, Name, Owner, StrictModel, default_to_name


def _check_id(value: Any) -> Any:
    if not isinstance(value, int | str) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise PydanticCustomError("id", "must be an id: a 64-bit integer, text, true or false")
    return value


def _check_clip(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "none" and not (is_number and math.isfinite(value) and value > 0):
        raise PydanticCustomError(
            "clip", 'must be a number of standard deviations greater than 0, or "none" for no limit'
        )
    return value


SHRINKAGE = 3
"""Number of zeros that ``shrunk`` adds to the embeddings that it averages."""

EmbeddingWidth = Annotated[int, Field(gt=0, le=65_536)]
Id = Annotated[int | str | bool, BeforeValidator(_check_id)]
Pooling = Literal["mean", "sum", "shrunk"]
Clip = Annotated[float | Literal["none"], BeforeValidator(_check_clip)]


class _ColumnFeature(StrictModel):
    """Base of features that are read from a column.

    Attributes:
        name: name of the feature.
        column: name of the column; default: the feature's name.
        owner: entity that the feature describes.
        training_only: the feature is unknown when serving (for example, the position); only ``side_tower`` reads it.
    """

    name: FeatureName
    column: ColumnName = ""
    owner: Owner
    training_only: bool = False

    @model_validator(mode="before")
    @classmethod
    def _column_defaults_to_name(cls, data: Any) -> Any:
        return default_to_name(data, "column")


class _EmbeddedIds(_ColumnFeature):
    """Base of features whose values are ids in an embedding table.

    Attributes:
        dim: width of the embedding.
        min_count: ids that occur less often in the training split share the out-of-vocabulary row.
        hash_buckets: if set, number of rows that ids are hashed into instead of keeping a vocabulary.
        table: name of the embedding table, shared by all features that name it; default: the feature's name.
    """

    dim: EmbeddingWidth = 16
    min_count: PositiveInt = 1
    hash_buckets: PositiveInt | None = None
    table: Name = ""

    @model_validator(mode="before")
    @classmethod
    def _table_defaults_to_name(cls, data: Any) -> Any:
        return default_to_name(data, "table")

    @model_validator(mode="after")
    def _check_one_mapping(self) -> Self:
        if self.hash_buckets is not None and self.min_count > 1:
            raise ValueError("min_count applies to a vocabulary, which hash_buckets replaces: set only one of them")
        return self


class CategoricalFeature(_EmbeddedIds):
    """One id per row (integer, string or boolean).

    Attributes:
        default: id that replaces a null.
    """

    kind: Literal["categorical"]
    default: Id | None = None


class _Pooled(_EmbeddedIds):
    """Base of features with a list of ids per row, pooled into one embedding.

    Attributes:
        pooling: ``mean`` or ``sum`` of the embeddings of the ids, or ``shrunk``: their sum / (number of ids + 3), which
            is a mean that is closer to 0 the fewer ids there are.
        default: list that replaces a null; it may be empty.
    """

    pooling: Pooling = "mean"
    default: ListOf[Id] | None = None

    @model_validator(mode="after")
    def _check_default_types(self) -> Self:
        if len({type(value) for value in self.default or ()}) > 1:
            raise ValueError("default mixes integers and strings: write ids of one type")
        return self

    def divisors(self, lengths: Any) -> Any:
        """Return what the sums of embeddings are divided by [rows].

        Args:
            lengths: numbers of ids [rows], a NumPy array or a tensor.
        """
        if self.pooling == "shrunk":
            return lengths + SHRINKAGE
        return lengths.clip(1) if self.pooling == "mean" else lengths * 0 + 1


class BagFeature(_Pooled):
    """Unordered list of ids per row."""

    kind: Literal["bag"]


class SequenceFeature(_Pooled):
    """List of ids per row in order of time, newest last, such as a user's recent items.

    Attributes:
        max_length: maximum number of ids that are pooled; older ids are dropped.
    """

    kind: Literal["sequence"]
    max_length: PositiveInt = 50


class NumericFeature(_ColumnFeature):
    """One number per row.

    Attributes:
        transform: ``standardise`` scales to mean 0 and variance 1 over the training split, ``log1p`` takes log(1 + x)
            and then standardises, ``none`` keeps the number.
        clip: limit of the standardized number, in standard deviations: the model reads at most ``clip`` and at least
            −``clip``. ``none`` for no limit; always ``none`` with the transform ``none``.
        bins: number of bins, which hold the same number of training rows, except for ties. The model reads the number
            and its piecewise-linear encoding in the bins, see ``ranking.encoding.bins``. 0 for the number alone.
        default: number that replaces a null; default: the training mean.
    """

    kind: Literal["numeric"]
    transform: Literal["standardise", "log1p", "none"] = "standardise"
    clip: Clip = 5.0
    bins: Annotated[int, Field(ge=0, le=1_000)] = 8
    default: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _unscaled_numbers_are_not_clipped(cls, data: Any) -> Any:
        return {"clip": "none", **data} if isinstance(data, dict) and data.get("transform") == "none" else data

    @model_validator(mode="after")
    def _check_clip_has_a_scale(self) -> Self:
        if self.transform == "none" and self.clip != "none":
            raise ValueError(
                f"clip = {self.clip:g} counts standard deviations, but transform = 'none' keeps the number: remove clip"
            )
        return self

    @model_validator(mode="after")
    def _check_default_has_logarithm(self) -> Self:
        if self.transform == "log1p" and self.default is not None and self.default <= -1:
            raise ValueError(f"default = {self.default:g} is −1 or less, but the transform is log1p")
        return self


class BucketsFeature(_ColumnFeature):
    """One number per row, divided into buckets that each have an embedding.

    Attributes:
        dim: width of the embedding.
        boundaries: ascending; the bucket of a number starts at the largest boundary ≤ the number.
        count: number of buckets, used instead of ``boundaries``; each holds the same number of training rows, except
            for ties.
        default: number that replaces a null; without it, null has its own embedding.
    """

    kind: Literal["buckets"]
    dim: EmbeddingWidth = 16
    boundaries: Annotated[ListOf[float], Field(min_length=1)] | None = None
    count: Annotated[int, Field(ge=2, le=100_000)] | None = None
    default: float | None = None

    @model_validator(mode="after")
    def _check_boundaries(self) -> Self:
        if (self.boundaries is None) == (self.count is None):
            raise ValueError("set either boundaries = [...] or count = N")
        if any(a >= b for a, b in itertools.pairwise(self.boundaries or ())):
            raise ValueError("boundaries must be strictly ascending")
        return self

    @property
    def table(self) -> str:
        """Name of the embedding table, which no other feature shares."""
        return self.name


class CrossFeature(StrictModel):
    """Combination of the ids of several categorical features, hashed into the cross's own embedding table.

    A cross has no column. It is missing where one of its parts is missing.

    Attributes:
        of: names of the parts, which are categorical features.
        hash_buckets: number of rows that the combinations are hashed into.
        dim: width of the embedding.
    """

    name: Name
    kind: Literal["cross"]
    of: Annotated[ListOf[Name], Field(min_length=2)]
    hash_buckets: PositiveInt
    dim: EmbeddingWidth = 16

    @model_validator(mode="after")
    def _check_parts_differ(self) -> Self:
        if len(set(self.of)) < len(self.of):
            raise ValueError("of names a feature twice")
        return self

    @property
    def table(self) -> str:
        """Name of the embedding table, which no other feature shares."""
        return self.name


PooledFeature = BagFeature | SequenceFeature
"""Features with a list of ids per row."""
IdFeature = CategoricalFeature | PooledFeature
"""Features whose column holds ids."""
SingleFeature = CategoricalFeature | BucketsFeature | CrossFeature
"""Features with one embedding per row."""
SparseFeature = SingleFeature | PooledFeature
"""Features with an embedding table."""
NumberFeature = NumericFeature | BucketsFeature
"""Features whose column holds numbers."""
InputFeature = IdFeature | NumberFeature
"""Features that are read from a column."""
Feature = Annotated[
    CategoricalFeature | BagFeature | SequenceFeature | NumericFeature | BucketsFeature | CrossFeature,
    Field(discriminator="kind"),
]
