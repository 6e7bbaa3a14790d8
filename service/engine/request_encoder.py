"""What a request gives → encoded halves. What it leaves out is looked up by id, already encoded.

The same numbers as ``Encoder.encode`` gives for the completed table, only sooner: ids are looked up as they come, and
columns of numbers are scaled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner, Schema
from service.engine.entity_encoder import EntityEncoder
from service.engine.entity_features import FeatureGroupAssembler
from service.engine.missing import Missing
from service.engine.request import FeatureRequest


class RequestEncoder:
    """Encodes requests for one ranker.

    Args:
        ranker: that scores them.

    Attributes:
        sides: which features belong to which half.
        readable: owner → column → the feature that says what its values are: of an id, if one reads the column.
    """

    def __init__(self, ranker: FrozenRanker) -> None:
        self.splitter = SharedItemSplitter(ranker.encoder)
        owners: list[Owner] = ["user", "context", "item"]
        self._owned = {owner: EntityEncoder(ranker, owner) for owner in owners}
        schemas = {owner: owned.schema for owner, owned in self._owned.items()}
        items: dict[Owner, Schema] = {"item": schemas.pop("item")}
        self._shared = FeatureGroupAssembler(ranker.encoder, self.splitter.shared, schemas)
        self._items = FeatureGroupAssembler(ranker.encoder, self.splitter.items, items)
        self._names = tuple(feature.name for feature in ranker.schema.inputs)
        self.readable = {owner: owned.readable for owner, owned in self._owned.items()}

    def __call__(self, request: FeatureRequest) -> RequestBatch:
        """The halves of a request, or of several as one.

        Raises:
            InvalidInputError: a number that no log can hold, text that is no integer (names column and row).
        """
        given, counts = request.owners, request.counts
        of_candidates = request.of_candidates
        rows = {
            owner: owned.encode(given[owner], len(of_candidates) if owner == "item" else len(counts))
            for owner, owned in self._owned.items()
        }
        hashes = {
            owner: {name: rows[owner].hashes[:, i] for i, name in enumerate(owned.parts)}
            for owner, owned in self._owned.items()
        }
        shared = hashes["user"] | hashes["context"]
        items = hashes["item"] | {name: each[of_candidates] for name, each in shared.items()}
        return RequestBatch(
            self._shared.put_together(rows, shared),
            self._items.put_together(rows, items),
            of_candidates,
        )

    def missing(self, halves: RequestBatch, counts: Sequence[int]) -> Iterator[Missing]:
        """What is known neither from the request nor by id, of each request.

        Args:
            halves: of requests.
            counts: candidates of each.
        """
        shared, items = halves.shared.missing, halves.items.missing
        places = self.splitter.shared.missing, self.splitter.items.missing
        stop = 0
        for count, of_request in zip(counts, shared, strict=True):
            stop += count
            yield Missing(self._names, *places, of_request, items[stop - count : stop])
