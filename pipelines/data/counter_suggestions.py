"""Proposal of counters for a log: the keys whose impressions repeat often enough to count them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ranking.counters.keys import PartHashes, counter_keys
from ranking.encoding.vocabulary import IdArray
from ranking.schema import ID_OWNERS, CategoricalFeature, Counter, PooledFeature, Schema

SAMPLED_ROWS = 2_000_000
"""Maximum number of training rows whose keys are counted; limits the memory to 16 bytes per row and key."""
MIN_REPEATED = 0.3
"""Minimum share of impressions with an earlier impression of the same key."""
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
        repeated: share of impressions with an earlier impression of the same key.
    """

    of: tuple[str, ...]
    labels: tuple[str, ...]
    keys: int
    repeated: float

    def to_toml(self) -> str:
        """Return the counter as an entry of ``ranker.toml``, with its figures in a comment."""
        of, labels = (", ".join(f'"{name}"' for name in names) for names in (self.of, self.labels))
        figures = f"# {self.keys:,} keys; {self.repeated:.0%} of the impressions have an earlier one of the same key"
        return f"[[counters]]   {figures}\nof = [{of}]\nlabels = [{labels}]\n"


class CounterSuggester:
    """Counts how often keys repeat; call ``add`` per table of the training split.

    Candidates are the user, the item, each of them with each categorical feature of the context, and the user with each
    categorical or bag feature of items.

    Args:
        schema: features and tasks.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        candidates = [Counter(of=of, labels=(schema.task_names[0],)) for of in _candidates(schema)]
        self._counters = schema.model_copy(update={"counters": tuple(candidates), "histories": ()})
        self._keys: dict[str, list[IdArray]] = {counter.name: [] for counter in candidates}
        self._positives = dict.fromkeys(schema.task_names, 0)
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add usable rows of the training split; those beyond ``SAMPLED_ROWS`` are ignored."""
        rows = rows.slice(0, SAMPLED_ROWS - self._rows)
        self._rows += rows.num_rows
        hashes = PartHashes.from_table(rows, self._counters)
        for counter in self._counters.counters:
            self._keys[counter.name].append(counter_keys(counter, hashes).keys)
        for task in self._schema.tasks:
            label = rows[task.label].cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
            self._positives[task.name] += int(np.count_nonzero(label))

    def suggestions(self) -> list[SuggestedCounter]:
        """Return the counters to declare: single keys first, then pairs, those that repeat most first."""
        declared = {frozenset(counter.of) for counter in self._schema.counters}
        labels = tuple(name for name, positives in self._positives.items() if positives >= MIN_LABELS)
        found: dict[tuple[str, ...], SuggestedCounter] = {}
        for counter in self._counters.counters:
            keys = np.concatenate([np.empty(0, np.int64), *self._keys[counter.name]])
            distinct = len(np.unique(keys))
            found[counter.of] = SuggestedCounter(counter.of, labels, distinct, 1 - distinct / max(len(keys), 1))
        kept = [
            counter
            for counter in found.values()
            if labels
            and frozenset(counter.of) not in declared
            and counter.repeated >= MIN_REPEATED
            and (len(counter.of) == 1 or counter.keys >= MIN_SPLIT * found[counter.of[:1]].keys)
        ]
        return sorted(kept, key=lambda counter: (len(counter.of), -counter.repeated))


def _candidates(schema: Schema) -> Iterator[tuple[str, ...]]:
    ids = [feature.name for owner in ID_OWNERS if (feature := schema.key_feature(owner)) is not None]
    parts = [f for f in schema.inputs if not f.training_only and f.name not in ids and f not in schema.derived]
    context = [f.name for f in parts if f.owner == "context" and isinstance(f, CategoricalFeature)]
    items = [f.name for f in parts if f.owner == "item" and isinstance(f, CategoricalFeature | PooledFeature)]
    user = schema.key_feature("user")
    for name in ids:
        yield (name,)
    for name in ids:
        is_user = user is not None and name == user.name
        for part in [*context, *(items if is_user else [])]:
            yield name, part
