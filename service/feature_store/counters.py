"""Sums of counters in the feature store: the keys that a request needs, and the decoding of their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ranking.artifacts.feature_store_keys import counter_key, counter_prefix, counter_state_key
from ranking.counters.stored_sums import (
    FIRST_TIME,
    LAST_TIME,
    Root,
    StateValue,
    StoredSums,
    are_records,
    decode_value,
    definition,
)
from ranking.errors import InvalidInputError
from service.engine.errors import InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.request import RawFeatures
from service.engine.validation import validate
from service.protocol.messages import RankOptions

Sections: TypeAlias = Sequence[tuple[int, bytes]]
"""Definition and records of each counter in a value."""


class CounterLookup:
    """Sums of counters that one request reads from the store.

    Args:
        model: version that will score the request.
        roots: roots to read, as kind and hash.
        prefix: prefix of the keys of the store.
        clustered: whether the store is a Redis Cluster.
    """

    def __init__(self, model: LoadedModel, roots: Sequence[tuple[Root, int]], prefix: str, *, clustered: bool) -> None:
        self._until, self._roots = model.encoder.counters_until, roots
        self._counters = {definition(counter): counter for counter in model.ranker.schema.counters}
        self._start = counter_prefix(prefix, model.name, clustered=clustered)

    @classmethod
    def for_request(
        cls, model: LoadedModel, options: RankOptions, items: RawFeatures, prefix: str, *, clustered: bool
    ) -> CounterLookup:
        """Find the roots of a parsed request; none if it is not valid, because validation will reject it."""
        roots: dict[Root, set[int]] = {}
        if model.encoder.counters_until is not None and len(items):
            try:
                roots = model.encoder.counter_roots(validate(options, items, model.encoder.readable))
            except (InvalidRequestError, InvalidInputError):
                roots = {}
        pairs = [(root, root_hash) for root, hashes in roots.items() for root_hash in sorted(hashes)]
        return cls(model, pairs, prefix, clustered=clustered)

    def keys(self, generation: int | None) -> list[str]:
        """Return the keys to read: that of the state, then those of the roots of a generation.

        Args:
            generation: generation of the store; None if it is unknown: only the state can be read.

        Returns:
            No keys if the version has no counters.
        """
        if not self._roots:
            return []
        state = counter_state_key(self._start)
        if generation is None:
            return [state]
        return [state, *(counter_key(self._start, generation, *root) for root in self._roots)]

    def state(self, value: bytes | None) -> StateValue | None:
        """Return the state of the store; None if it has none, or one that is older than the bundle.

        Raises:
            ValueError: the value cannot be decoded.
        """
        if value is None or self._until is None:
            return None
        state = StateValue.decode(value)
        base = {identifier: [data] for identifier, data in state.base.items()}
        if not FIRST_TIME <= state.until <= LAST_TIME or not self._are_valid(base):
            raise ValueError("the state is damaged")
        return None if state.until < self._until else state

    def decode(self, state: StateValue, values: Sequence[bytes | None]) -> tuple[StoredSums, int]:
        """Return the sums, and the number of values that cannot be decoded.

        Args:
            state: state of the store.
            values: values of the roots of its generation.
        """
        read: list[tuple[Root, int, Sections]] = []
        undecodable = 0
        for (root, root_hash), value in zip(self._roots, values, strict=True):
            if value is None:
                continue
            try:
                read.append((root, root_hash, decode_value(value)))
            except ValueError:
                undecodable += 1
        sums = _gather(state, read)
        if not self._are_valid(sums.sections):  # all values at once, because one at a time takes much longer
            valid = [value for value in read if self._are_valid({key: [data] for key, data in value[2]})]
            return _gather(state, valid), undecodable + len(read) - len(valid)
        return sums, undecodable

    def _are_valid(self, sections: Mapping[int, Sequence[bytes]]) -> bool:
        """Return whether sections can be those of the counters; those of other models are not checked."""
        return all(are_records(counter, sections.get(key, ())) for key, counter in self._counters.items())


def _gather(state: StateValue, read: Iterable[tuple[Root, int, Sections]]) -> StoredSums:
    """Join the sections of values by their definition."""
    sums = StoredSums(state)
    for root, root_hash, sections in read:
        sums.roots.setdefault(root, []).append(root_hash)
        for identifier, data in sections:
            sums.sections.setdefault(identifier, []).append(data)
    return sums
