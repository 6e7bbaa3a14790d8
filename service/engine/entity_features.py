"""Encoded rows of one owner, and how those of several make a half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import EncodedBatch, Mask, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import FeatureGroup
from ranking.encoding.vocabulary import HashBuckets, IdArray
from ranking.schema import CrossFeature, Owner, Schema


@dataclass
class EntityFeatures:
    """Encoded features of one owner, as in ``EncodedBatch``, and the hashes of its cross parts [rows, parts]."""

    ids: IdArray
    bags: list[RaggedIds]
    dense: npt.NDArray[np.float32]
    missing: Mask
    hashes: IdArray

    @classmethod
    def from_encoded(cls, inputs: EncodedBatch, hashes: IdArray) -> EntityFeatures:
        """What is encoded, to be written over."""
        return cls(inputs.ids, list(inputs.bags), inputs.dense, inputs.missing, hashes)

    def inputs(self) -> EncodedBatch:
        """Without the hashes."""
        return EncodedBatch(self.ids, tuple(self.bags), self.dense, self.missing)

    def repeated(self, count: int) -> EntityFeatures:
        """This one row so many times, as a copy."""
        every = np.zeros(count, np.int64)
        return EntityFeatures(
            self.ids.repeat(count, 0),
            [bag if count == 1 else bag.take(every) for bag in self.bags],
            self.dense.repeat(count, 0),
            self.missing.repeat(count, 0),
            self.hashes.repeat(count, 0),
        )


class FeatureGroupAssembler:
    """Puts the features of a half's owners side by side, in the order of the half, and adds its crosses.

    Args:
        encoder: of all features.
        columns: of the half.
        schemas: owner → its features without crosses, as its ``EntityFeatures`` hold them.
    """

    def __init__(self, encoder: Encoder, columns: FeatureGroup, schemas: Mapping[Owner, Schema]) -> None:
        self._owners, each = list(schemas), list(schemas.values())
        crosses = [f for f in columns.singles if isinstance(f, CrossFeature)]
        self._crosses = [(cross.of, encoder.id_mappings[cross.table]) for cross in crosses]
        numbers = _dense(encoder, encoder.schema)
        singles = [*chain.from_iterable(s.categoricals for s in each), *crosses]
        self._ids = _order([f.name for f in columns.singles], [f.name for f in singles])
        self._bags = _order([f.name for f in columns.bags], [f.name for s in each for f in s.bags])
        self._dense = _order(
            [numbers[i] for i in columns.dense], [number for s in each for number in _dense(encoder, s)]
        )
        given = [encoder.schema.inputs[i].name for i in columns.missing]
        self._missing = _order(given, [f.name for s in each for f in s.inputs])

    def put_together(self, rows: Mapping[Owner, EntityFeatures], hashes: Mapping[str, IdArray]) -> EncodedBatch:
        """The half's columns.

        Args:
            rows: of its owners.
            hashes: of what crosses are made of, by name [rows].
        """
        parts = [rows[owner] for owner in self._owners]
        if len(parts) == 1 and not self._crosses:
            return parts[0].inputs()
        ids = [part.ids for part in parts]
        for names, space in self._crosses:
            assert isinstance(space, HashBuckets)
            ids.append(space.cross_rows([hashes[name] for name in names])[:, None])
        bags = [bag for part in parts for bag in part.bags]
        return EncodedBatch(
            np.concatenate(ids, 1).take(self._ids, 1),
            tuple(bags[i] for i in self._bags),
            np.concatenate([part.dense for part in parts], 1).take(self._dense, 1),
            np.concatenate([part.missing for part in parts], 1).take(self._missing, 1),
        )


def _dense(encoder: Encoder, schema: Schema) -> list[tuple[str, bool]]:
    """What each dense column of these features is: a number's name, and whether it is the number or its flag."""
    names = [number.name for number in schema.numerics]
    return [
        *((name, True) for name in names),
        *((name, False) for name in names if encoder.scales[name].has_missing_indicator),
    ]


def _order(wanted: Sequence[Any], there: Sequence[Any]) -> npt.NDArray[np.intp]:
    """Where each wanted one stands."""
    return np.array([there.index(name) for name in wanted], np.intp)
