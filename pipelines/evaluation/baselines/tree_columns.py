"""Encoded rows as one matrix of numbers and categories, the input of gradient-boosted trees.

Ids are categories. A list of ids becomes two columns: one id as a category (of a sequence the newest, of a bag the
first) and the number of ids. The dense columns, counters among them, are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranking.encoding.batch import EncodedBatch, Float32, Int64, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.id_rows import MISSING
from ranking.schema import SequenceFeature


@dataclass(frozen=True)
class TreeColumns:
    """Columns of the matrix.

    Attributes:
        sizes: ids of each categorical column; 0 for a number.
        newest: whether each list keeps its newest id, which is the last one.
    """

    sizes: tuple[int, ...]
    newest: tuple[bool, ...]

    @classmethod
    def of(cls, encoder: Encoder) -> TreeColumns:
        """Describe the columns for the rows of an encoder."""
        schema = encoder.schema
        table_sizes = {name: mapping.size for name, mapping in encoder.id_mappings.items()}
        sizes = [table_sizes[feature.table] for feature in schema.categoricals]
        for bag in schema.bags:
            sizes += [table_sizes[bag.table], 0]
        sizes += [0] * encoder.dense_size
        return cls(tuple(sizes), tuple(isinstance(bag, SequenceFeature) for bag in schema.bags))

    def matrix(self, inputs: EncodedBatch) -> Float32:
        """Return the columns of encoded rows [rows, columns]; missing ids are NaN."""
        parts = [inputs.ids]
        for bag, newest in zip(inputs.bags, self.newest, strict=True):
            chosen = _choose_id(bag, newest=newest)
            parts += [chosen[:, None], np.where(chosen == MISSING, 0, bag.lengths)[:, None]]
        matrix = np.concatenate([*parts, inputs.dense], axis=1).astype(np.float32)
        for column, size in enumerate(self.sizes):
            if size:
                matrix[matrix[:, column] == MISSING, column] = np.nan
        return matrix

    def up_to(self, max_ids: int) -> list[int]:
        """Return the positions of the numbers and of the categorical columns with at most ``max_ids`` ids."""
        return [column for column, size in enumerate(self.sizes) if size <= max_ids]


def _choose_id(bag: RaggedIds, *, newest: bool) -> Int64:
    """Return the last or the first id of each list, ``MISSING`` for an empty one."""
    ends = np.cumsum(bag.lengths)
    positions = ends - 1 if newest else ends - bag.lengths
    ids = np.append(bag.values, MISSING)[positions]  # The appended id takes positions beyond the end of an empty list.
    return np.where(bag.lengths > 0, ids, MISSING)
