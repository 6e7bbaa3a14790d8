"""Counters and histories: features computed from the impressions before each impression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from ranking.schema.base import ListOf, Name, Owner, StrictModel
from ranking.schema.features import (
    CategoricalFeature,
    CrossFeature,
    Feature,
    InputFeature,
    NumericFeature,
    PooledFeature,
    Pooling,
    SequenceFeature,
)
from ranking.schema.value_text import value_text

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""Seconds of each unit of a duration."""
HOUR, DAY = UNITS["h"], UNITS["d"]
MAX_BUCKETS = 366
"""Largest number of buckets of a window: the state has a row per key and bucket."""
HISTORY_POOLING: Pooling = "shrunk"
"""Pooling of a history whose feature is not declared."""


def seconds_of(duration: str) -> int:
    """Return the seconds of a valid duration such as ``90s``, ``30m``, ``1h`` or ``7d``."""
    return int(duration[:-1]) * UNITS[duration[-1]]


def _check_duration(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"\d{1,6}[smhd]", text):
        form = "write a number and s, m, h or d in quotes, such as '1h' or '7d'"
        raise ValueError(f"{value_text(text)} is not a duration: {form}")
    return text


def _check_positive(text: str) -> str:
    if not seconds_of(text):
        raise ValueError("must be longer than 0 seconds")
    return text


Duration = Annotated[str, BeforeValidator(_check_duration)]
"""Duration as a whole number of seconds, minutes, hours or days."""
PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]


class _PointInTime(StrictModel):
    """Base of entries that are computed from earlier impressions.

    Attributes:
        as_of: ``day``: labels of a day are known from the following midnight on, in the time zone of the log. The
            default, unless ``delay`` is set.
        delay: duration after which the label of an impression is known.
    """

    as_of: Literal["day"] | None = None
    delay: Duration | None = None

    @model_validator(mode="after")
    def _check_one_rule(self) -> Self:
        if self.as_of is not None and self.delay is not None:
            raise ValueError("give either as_of or delay: both say when a label is known")
        return self

    @property
    def delay_seconds(self) -> int | None:
        """Seconds after which a label is known; None if it is known from the following midnight on."""
        return None if self.delay is None else seconds_of(self.delay)


class Counter(_PointInTime):
    """Sums over the earlier impressions with the same key, such as the same user and tab.

    Each counter gives numeric features: a smoothed mean per label, the number of impressions, and the seconds since the
    last impression.

    Attributes:
        of: names of the id features that form the key. One of them may be a bag or a sequence: the sums of all its
            elements are added.
        labels: names of tasks.
        name: first part of the names of the features; default: the names in ``of``, joined by ``_``.
        prior: weight of the base rate in a smoothed mean, in impressions.
        window: duration before the impression whose impressions count, in whole days or, below a day, in whole hours.
            The current day (hour) counts as the first. Default: all earlier impressions count.
        half_life: duration after which an impression has half its weight; default: all impressions have weight 1.
    """

    of: Annotated[ListOf[Name], Field(min_length=1)]
    labels: Annotated[ListOf[Name], Field(min_length=1)]
    name: Name = ""
    prior: PositiveFloat = 20.0
    window: PositiveDuration | None = None
    half_life: PositiveDuration | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_defaults_to_key(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(of := data.get("of"), list | tuple):
            return data
        return {"name": "_".join(map(str, of)), **data}

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.window is None:
            return self
        if self.half_life is not None:
            raise ValueError("give either window or half_life")
        seconds = seconds_of(self.window)
        if seconds % self.bucket_seconds:
            raise ValueError(f"window = '{self.window}' must be whole hours up to a day, and whole days beyond")
        if seconds // self.bucket_seconds > MAX_BUCKETS:
            raise ValueError(f"window = '{self.window}' must be at most {MAX_BUCKETS} days")
        return self

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        for key in ("of", "labels"):
            names = getattr(self, key)
            repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if repeated:
                raise ValueError(f"{key} contains '{repeated[0]}' twice: remove one")
        return self

    @property
    def bucket_seconds(self) -> int:
        """Seconds of one bucket of the window: a day, or an hour for a window shorter than a day."""
        return DAY if self.window is None or seconds_of(self.window) >= DAY else HOUR

    @property
    def buckets(self) -> int | None:
        """Number of buckets of the window; None without a window."""
        return None if self.window is None else seconds_of(self.window) // self.bucket_seconds

    @property
    def half_life_seconds(self) -> int | None:
        """Seconds of the half-life; None without one."""
        return None if self.half_life is None else seconds_of(self.half_life)

    def rate(self, label: str) -> str:
        """Return the name of the feature with the smoothed mean of a label."""
        return f"{self.name}_{label}_rate"

    @property
    def count(self) -> str:
        """Name of the feature with the number of impressions."""
        return f"{self.name}_count"

    @property
    def age(self) -> str:
        """Name of the feature with the seconds since the last impression."""
        return f"{self.name}_age"

    @property
    def columns(self) -> list[str]:
        """Names of the features: a rate per label, the count, the age."""
        return [*map(self.rate, self.labels), self.count, self.age]

    def features(self, declared: Sequence[Feature]) -> Iterator[NumericFeature]:
        """Yield the features; ``declared`` are those of the schema, some of which form the key."""
        for name in self.columns:
            transform: Literal["standardise", "log1p"] = "log1p" if name in (self.count, self.age) else "standardise"
            yield NumericFeature(name=name, kind="numeric", owner=self.owner(declared), transform=transform)

    def owner(self, declared: Sequence[Feature]) -> Owner:
        """Return the owner of the features; ``declared`` are those of the schema, some of which form the key."""
        owners = {f.owner for f in declared if f.name in self.of and not isinstance(f, CrossFeature)}
        return "item" if "item" in owners else "context" if owners != {"user"} else "user"


class History(_PointInTime):
    """The last items of a user with a certain label, oldest first, as a sequence feature.

    Attributes:
        of: name of a categorical item feature, whose ids the history contains.
        label: name of a binary task.
        value: label of the impressions in the history.
        name: name of the feature.
        max_length: number of items.
    """

    of: Name
    label: Name
    value: Literal[0, 1] = 1
    name: Name = ""
    max_length: PositiveInt = 50

    @model_validator(mode="before")
    @classmethod
    def _name_defaults_to_label(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in ("of", "label")):
            return data
        return {"name": f"{data['label']}{'' if data.get('value', 1) else '_0'}_{data['of']}_history", **data}

    def feature(self, declared: Sequence[Feature]) -> SequenceFeature | None:
        """Return the feature, which shares the embedding table of ``of``; None if ``of`` is not categorical."""
        part = next((feature for feature in declared if feature.name == self.of), None)
        if not isinstance(part, CategoricalFeature):
            return None
        return SequenceFeature(
            name=self.name,
            kind="sequence",
            owner="user",
            pooling=HISTORY_POOLING,
            max_length=self.max_length,
            **{key: getattr(part, key) for key in ("dim", "min_count", "hash_buckets", "table")},
        )


def counter_features(
    declared: Sequence[Feature], counters: Sequence[Counter], histories: Sequence[History]
) -> list[Feature]:
    """Return the features of counters and histories that the configuration does not declare itself."""
    features: list[Feature] = [feature for counter in counters for feature in counter.features(declared)]
    features += [feature for history in histories if (feature := history.feature(declared)) is not None]
    names = {feature.name for feature in declared}
    return [feature for feature in features if feature.name not in names]


def check_counter(
    counter: Counter, features: Sequence[Feature], tasks: Sequence[str], counter_columns: set[str]
) -> None:
    """Check the names in a counter.

    Raises:
        ValueError: a name is unknown or of the wrong kind; names the counter and the fix.
    """
    entry = f"counter '{counter.name}'"
    parts = {feature.name: feature for feature in features if feature.name not in counter_columns}
    for name in counter.of:
        part = _part(entry, name, parts)
        if not isinstance(part, CategoricalFeature | PooledFeature):
            raise ValueError(f"{entry}: of names '{name}', a {part.kind} feature: use categorical, bag or sequence")
    lists = [name for name in counter.of if isinstance(parts[name], PooledFeature)]
    if len(lists) > 1:
        raise ValueError(f"{entry}: of names {len(lists)} features with lists ({', '.join(lists)}): use at most one")
    for label in counter.labels:
        if label not in tasks:
            raise ValueError(f"{entry}: labels names '{label}', which is not a task; choose from {', '.join(tasks)}")
    for feature in features:
        if feature.name not in counter.columns:
            continue
        if not isinstance(feature, NumericFeature):
            raise ValueError(f"{entry}: declare feature '{feature.name}' as numeric, or give the counter another name")
        _check_computed_column(entry, feature)
        if feature.owner != (owner := counter.owner([*parts.values()])):
            raise ValueError(f"{entry}: declare feature '{feature.name}' with owner = '{owner}', that of its key")


def check_history(history: History, features: Sequence[Feature], binary_tasks: Sequence[str]) -> None:
    """Check the names in a history.

    Raises:
        ValueError: a name is unknown or of the wrong kind; names the history and the fix.
    """
    entry = f"history '{history.name}'"
    part = _part(entry, history.of, {feature.name: feature for feature in features if feature.name != history.name})
    if not isinstance(part, CategoricalFeature) or part.owner != "item":
        names = [f.name for f in features if isinstance(f, CategoricalFeature) and f.owner == "item"]
        choice = ", ".join(names) or "there is none"
        raise ValueError(
            f"{entry}: of names '{history.of}', which is not a categorical item feature; choose from {choice}"
        )
    if history.label not in binary_tasks:
        choice = ", ".join(binary_tasks) or "there is none"
        raise ValueError(f"{entry}: label names '{history.label}', which is not a binary task; choose from {choice}")
    feature = next(feature for feature in features if feature.name == history.name)
    if not isinstance(feature, SequenceFeature) or feature.owner != "user":
        raise ValueError(
            f"{entry}: declare feature '{history.name}' as a sequence of users, or give the history another name"
        )
    _check_computed_column(entry, feature)


def _check_computed_column(entry: str, feature: InputFeature) -> None:
    if feature.column != feature.name:
        raise ValueError(
            f"{entry}: feature '{feature.name}' sets column = '{feature.column}', but its values are computed: "
            "remove column"
        )


def _part(entry: str, name: str, parts: dict[str, Feature]) -> InputFeature:
    part = parts.get(name)
    if part is None:
        names = [f.name for f in parts.values() if isinstance(f, CategoricalFeature | PooledFeature)]
        choice = ", ".join(names) or "there is none"
        raise ValueError(f"{entry}: of names '{name}', which is not a declared feature; choose from {choice}")
    if isinstance(part, CrossFeature):
        raise ValueError(f"{entry}: of names '{name}', a {part.kind} feature: name its parts")
    if part.training_only:
        raise ValueError(f"{entry}: of names '{name}', which is training_only: it is unknown when serving")
    return part
