"""Sums of counters in the feature store: the keys that a request needs, and the decoding of their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ranking.artifacts.feature_store_keys import counter_key, counter_prefix
from ranking.counters.stored_sums import (
    FIRST_TIME,
    LAST_TIME,
    Root,
    StateValue,
    StoredSums,
    are_records,
    decode_value,
    definition,
    stored_type,
)
from ranking.errors import InvalidInputError
from service.engine.errors import InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.validation import ParsedRequest, validate


class CounterLookup:
    """Sums of counters that one request reads from the store.

    Args:
        model: version that will score the request.
        roots: roots to read, as kind and hash.
        prefix: prefix of the keys of the store.
        clustered: whether the store is a Redis Cluster.

    Attributes:
        keys: keys to read; none if the version has no counters.
    """

    def __init__(self, model: LoadedModel, roots: Sequence[tuple[Root, int]], prefix: str, *, clustered: bool) -> None:
        self._until, self._roots = model.encoder.counters_until, roots
        self._counters = {definition(counter): counter for counter in model.ranker.schema.counters}
        start = counter_prefix(prefix, model.name, clustered=clustered)
        self.keys = [f"{start}state", *(counter_key(start, root, root_hash) for root, root_hash in roots)]
        self.keys = self.keys if roots else []

    @classmethod
    def for_request(cls, model: LoadedModel, request: ParsedRequest, prefix: str, *, clustered: bool) -> CounterLookup:
        """Find the roots of a parsed request; none if it is not valid, because validation will reject it."""
        roots: dict[Root, set[int]] = {}
        if model.encoder.counters_until is not None and len(request.candidates):
            try:
                roots = model.encoder.counter_roots(validate(request, model.encoder.readable))
            except (InvalidRequestError, InvalidInputError):
                roots = {}
        pairs = [(root, root_hash) for root, hashes in roots.items() for root_hash in sorted(hashes)]
        return cls(model, pairs, prefix, clustered=clustered)

    def decode(self, values: Sequence[bytes | None]) -> tuple[StoredSums | None, int]:
        """Return the sums, and the number of values that cannot be decoded.

        Args:
            values: values of ``keys``.

        Returns:
            None instead of sums if the store holds none, or older ones than the bundle: the bundle's sums count then.
        """
        if not values or values[0] is None or self._until is None:
            return None, 0
        try:
            state = StateValue.decode(values[0])
        except ValueError:
            return None, 1
        if not FIRST_TIME <= state.until <= LAST_TIME or not self._are_valid(state.base.items()):
            return None, 1
        if state.until < self._until:
            return None, 0
        read, undecodable = [], 0
        for (root, root_hash), value in zip(self._roots, values[1:], strict=True):
            if value is None:
                continue
            try:
                sections = decode_value(value, state.generation)
            except ValueError:
                undecodable += 1
                continue
            if sections is not None:
                read.append((root, root_hash, sections))
        if not self._are_valid_together(sections for *_, sections in read):
            valid = [value for value in read if self._are_valid(value[2])]
            undecodable += len(read) - len(valid)
            read = valid
        sums = StoredSums(state)
        for root, root_hash, sections in read:
            sums.roots.setdefault(root, []).append(root_hash)
            for identifier, data in sections:
                sums.sections.setdefault(identifier, []).append(data)
        return sums, undecodable

    def _are_valid(self, sections: Iterable[tuple[int, bytes]]) -> bool:
        """Return whether sections can be those of the counters; those of other models are not checked."""
        return all(
            are_records(self._counters[identifier], data)
            for identifier, data in sections
            if identifier in self._counters
        )

    def _are_valid_together(self, values: Iterable[Sequence[tuple[int, bytes]]]) -> bool:
        """Do the same for the sections of all values at once, which is faster; False if a section may be invalid."""
        joined: dict[int, list[bytes]] = {}
        for identifier, data in chain.from_iterable(values):
            joined.setdefault(identifier, []).append(data)
        whole = all(
            len(data) % stored_type(self._counters[identifier]).itemsize == 0
            for identifier, parts in joined.items()
            if identifier in self._counters
            for data in parts
        )
        return whole and self._are_valid((identifier, b"".join(parts)) for identifier, parts in joined.items())
