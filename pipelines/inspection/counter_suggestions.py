"""Proposal of counters for a log: the keys whose impressions repeat often enough to count them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config.config import LogsConfig
from pipelines.data.reader import LogReader
from pipelines.data.splits import local_microseconds, split_range
from ranking.counters.keys import PartHashes, counter_keys
from ranking.encoding.vocabulary import IdArray
from ranking.schema import ID_OWNERS, CategoricalFeature, Counter, PooledFeature, Schema
from ranking.schema.counters import seconds_of

SAMPLED_ROWS = 2_000_000
"""Maximum number of training rows whose keys are counted; limits the memory to 32 bytes per row and key."""
MIN_REPEATED = 0.3
"""Minimum share of impressions for which a counter knows an earlier impression of the same key."""
DELAY = "1h"
"""Delay of counters that know too few impressions of earlier days, such as those of users who come once."""
DAY = 86_400_000_000
"""A day in microseconds."""
MIN_DAYS = 3
"""Days that a sample must span, so that it shows how often a key has an earlier day."""
MIN_SPLIT = 1.3
"""A pair must have this many times the keys of its user or item; with fewer it repeats the counter of that part."""
MIN_LABELS = 50
"""Labels with fewer positives are left out: their rates would be the base rate nearly everywhere."""


@dataclass(frozen=True)
class SuggestedCounter:
    """A counter that repeats often enough.

    Attributes:
        of: names of the features that form the key.
        labels: names of tasks.
        keys: number of distinct keys.
        repeated: share of impressions for which the counter knows an earlier impression of the same key.
        delay: when labels are known; None: from the following midnight on.
        by_day: whether ``repeated`` is for counters by day. In a sample of few days, any earlier impression counts.
    """

    of: tuple[str, ...]
    labels: tuple[str, ...]
    keys: int
    repeated: float
    delay: str | None = None
    by_day: bool = True

    def to_toml(self) -> str:
        """Return the counter as an entry of ``ranker.toml``, with its figures in a comment."""
        of, labels = (", ".join(f'"{name}"' for name in names) for names in (self.of, self.labels))
        earlier = "one of the same key on an earlier day" if self.by_day else "an earlier one of the same key"
        if self.delay is not None:
            earlier = f"one more than {self.delay} earlier"
        figures = f"# {self.keys:,} keys; {self.repeated:.0%} of the impressions have {earlier}"
        delay = (
            ""
            if self.delay is None
            else f'delay = "{self.delay}"   # set it to the time after which labels are known\n'
        )
        return f"[[counters]]   {figures}\nof = [{of}]\nlabels = [{labels}]\n{delay}"


def suggest_counters(reader: LogReader, logs: LogsConfig, schema: Schema) -> list[SuggestedCounter]:
    """Return the counters that fit a log, from the first ``SAMPLED_ROWS`` rows of its training split.

    Candidates are the user, the item, each of them with each categorical feature of the context, and the user with each
    categorical or bag feature of items.

    Args:
        reader: the log.
        logs: time bounds of the splits.
        schema: features and tasks.

    Raises:
        LogError: the log cannot be read.
    """
    suggester = CounterSuggester(schema)
    for chunk in reader.scan(split_range(logs, "train")):
        suggester.add(chunk.rows)
        if suggester.is_full:
            break
    return suggester.suggestions()


class CounterSuggester:
    """Counts how often keys repeat.

    Args:
        schema: features and tasks.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        candidates = [Counter(of=of, labels=(schema.task_names[0],)) for of in _candidates(schema)]
        self._counters = schema.model_copy(update={"counters": tuple(candidates), "histories": ()})
        self._keys: dict[str, list[IdArray]] = {counter.name: [] for counter in candidates}
        self._times: dict[str, list[IdArray]] = {counter.name: [] for counter in candidates}
        self._positives = dict.fromkeys(schema.task_names, 0)
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add usable rows of the training split; those beyond ``SAMPLED_ROWS`` are ignored."""
        rows = rows.slice(0, SAMPLED_ROWS - self._rows)
        self._rows += rows.num_rows
        hashes = PartHashes.from_table(rows, self._counters)
        times = local_microseconds(rows[self._schema.columns.time])
        for counter in self._counters.counters:
            found = counter_keys(counter, hashes)
            self._keys[counter.name].append(found.keys)
            self._times[counter.name].append(times[found.rows])
        for task in self._schema.tasks:
            label = rows[task.label].cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
            self._positives[task.name] += int(np.count_nonzero(label))

    @property
    def is_full(self) -> bool:
        """Whether further rows would be ignored."""
        return self._rows == SAMPLED_ROWS

    def suggestions(self) -> list[SuggestedCounter]:
        """Return the counters to declare: single keys first, then pairs, those that repeat most first."""
        declared = {frozenset(counter.of) for counter in self._schema.counters}
        labels = tuple(name for name, positives in self._positives.items() if positives >= MIN_LABELS)
        found: dict[tuple[str, ...], SuggestedCounter] = {}
        for counter in self._counters.counters:
            found[counter.of] = self._suggestion(counter, labels)
        kept = [
            counter
            for counter in found.values()
            if labels
            and frozenset(counter.of) not in declared
            and counter.repeated >= MIN_REPEATED
            and (len(counter.of) == 1 or counter.keys >= MIN_SPLIT * found[counter.of[:1]].keys)
        ]
        return sorted(kept, key=lambda counter: (len(counter.of), -counter.repeated))

    def _suggestion(self, counter: Counter, labels: tuple[str, ...]) -> SuggestedCounter:
        """Return a counter by day, or with a delay if too few impressions have an earlier day with the same key.

        A sample of few days does not show it: any earlier impression counts, and no delay is suggested.
        """
        keys, times = (
            np.concatenate([np.empty(0, np.int64), *parts[counter.name]]) for parts in (self._keys, self._times)
        )
        distinct, numbers = np.unique(keys, return_inverse=True)
        first = np.full(len(distinct), np.iinfo(np.int64).max)
        np.minimum.at(first, numbers, times)
        since = first[numbers]

        def suggestion(has_earlier: npt.NDArray[np.bool_], **options: Any) -> SuggestedCounter:
            repeated = float(has_earlier.mean()) if len(keys) else 0.0
            return SuggestedCounter(counter.of, labels, len(distinct), repeated, **options)

        if not len(times) or np.ptp(times // DAY) + 1 < MIN_DAYS:
            return suggestion(times > since, by_day=False)
        by_day = suggestion(times // DAY > since // DAY)
        delayed = suggestion(times - seconds_of(DELAY) * 1_000_000 > since, delay=DELAY)
        return delayed if by_day.repeated < MIN_REPEATED <= delayed.repeated else by_day


def _candidates(schema: Schema) -> Iterator[tuple[str, ...]]:
    ids = [feature.name for owner in ID_OWNERS if (feature := schema.key_feature(owner)) is not None]
    parts = [f for f in schema.inputs if not f.training_only and f.name not in ids and f not in schema.counter_features]
    context = [f.name for f in parts if f.owner == "context" and isinstance(f, CategoricalFeature)]
    items = [f.name for f in parts if f.owner == "item" and isinstance(f, CategoricalFeature | PooledFeature)]
    user = schema.key_feature("user")
    for name in ids:
        yield (name,)
    for name in ids:
        is_user = user is not None and name == user.name
        for part in [*context, *(items if is_user else [])]:
            yield name, part
