"""Features of counters and histories for requests, from the hashes of ids that encoding leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ranking.counters.features import CounterFeatures
from ranking.counters.keys import NO_KEY, PartHashes, counter_keys, root_part
from ranking.counters.stored_sums import Root, root_of
from ranking.encoding.batch import RaggedIds
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.schema import Counter, Owner
from service.engine.entity_encoder import EntityEncoder, EntityFeatures, EntityHashes
from service.engine.request import FeatureRequest
from service.engine.values import Values


class CounterEncoder:
    """Computes and encodes the features of counters and histories.

    Args:
        features: state of the ranker's counters and histories.
        encoders: encoders by owner.

    Attributes:
        columns: columns of the counters of each owner.
    """

    def __init__(self, features: CounterFeatures, encoders: Mapping[Owner, EntityEncoder]) -> None:
        self._features, self._encoders = features, encoders
        schema = features.schema
        self._counters_of: dict[Owner, list[Counter]] = {owner: [] for owner in encoders}
        for counter in schema.counters:
            self._counters_of[counter.owner(schema.features)].append(counter)
        self.columns = {
            owner: tuple(column for counter in counters for column in counter.columns)
            for owner, counters in self._counters_of.items()
        }
        user = schema.key_feature("user")
        self._user = user.name if user is not None and schema.histories else None

    def write(
        self, request: FeatureRequest, entities: Mapping[Owner, EntityFeatures], request_index: IdArray
    ) -> tuple[dict[Owner, FloatArray], dict[str, Values]]:
        """Write the features into encoded rows.

        Args:
            request: the features, not encoded.
            entities: encoded features by owner; modified.
            request_index: index of the request of each candidate [candidates].

        Returns:
            The values of counters by owner, as ``CounterFeatures.numbers`` returns them, and of histories by column,
            whether or not the request sends others.

        Raises:
            InvalidInputError: as for ``EntityEncoder.encode``.
        """
        assert self._features.clock is not None
        count = len(request.counts)
        now = np.array(request.times, np.int64) if request.times else np.full(count, self._features.clock.now())
        shared = self._part_hashes(["user", "context"], entities, count)
        all_numbers: dict[Owner, FloatArray] = {}
        all_lists: dict[str, Values] = {}
        for owner, encoder in self._encoders.items():
            counters, hashes, times, lists = self._counters_of[owner], shared, now, {}
            if owner == "item" and counters:
                items = self._part_hashes(["item"], entities, len(request_index))
                hashes, times = shared.take(request_index) | items, now[request_index]
            if owner == "user" and self._user is not None:
                lists = self._features.item_lists(shared.singles[self._user])
            if counters or lists:
                numbers = self._features.numbers(hashes, times, counters, request.sums)
                encoder.write_counter_features(
                    entities[owner], request.owners[owner], self.columns[owner], numbers, lists
                )
                all_numbers[owner] = numbers
                all_lists |= lists
        return all_numbers, all_lists

    def roots(self, request: FeatureRequest) -> dict[Root, set[int]]:
        """Return the hashes of the roots whose sums a single request needs, by kind.

        Raises:
            InvalidInputError: as for ``EntityEncoder.part_hashes``.
        """
        schema, count = self._features.schema, len(request)
        parts = {owner: encoder.part_hashes(request.owners[owner]) for owner, encoder in self._encoders.items()}
        shared = self._hashes_by_name({owner: parts[owner] for owner in ("user", "context")}, 1)
        items = shared.take(np.zeros(count, np.int64)) | self._hashes_by_name({"item": parts["item"]}, count)
        roots: dict[Root, set[int]] = {}
        for owner, counters in self._counters_of.items():
            hashes = items if owner == "item" else shared
            for counter in counters:
                part = root_part(counter, schema)
                found = counter_keys(counter, hashes).keys if part is None else hashes.singles[part]
                roots.setdefault(root_of(counter, schema), set()).update(found.tolist())
        return {root: hashes - {NO_KEY} for root, hashes in roots.items()}

    def _hashes_by_name(self, parts: Mapping[Owner, EntityHashes], rows: int) -> PartHashes:
        """Return hashes by feature; ``parts`` are those of each owner."""
        singles: dict[str, IdArray] = {}
        lists: dict[str, RaggedIds] = {}
        for owner, (hashes, list_hashes) in parts.items():
            encoder = self._encoders[owner]
            singles |= {name: hashes[:, i] for i, name in enumerate(encoder.parts)}
            lists |= dict(zip(encoder.list_parts, list_hashes, strict=True))
        return PartHashes(rows, singles, lists)

    def _part_hashes(self, owners: Sequence[Owner], entities: Mapping[Owner, EntityFeatures], rows: int) -> PartHashes:
        """Return the hashes of the ids of these owners."""
        parts = {owner: (entities[owner].hashes, entities[owner].list_hashes) for owner in owners}
        return self._hashes_by_name(parts, rows)
