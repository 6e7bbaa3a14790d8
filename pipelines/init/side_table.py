"""Features of a table of users or items."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.data.dated_table import VALID_FROM
from pipelines.init.column_profile import profile_columns
from pipelines.init.conversions import Conversions, Convert
from pipelines.init.features import guess_feature
from pipelines.init.guesses import FeatureGuess, LeftOut, OwnerGuess
from pipelines.init.source import Source
from ranking.errors import LogError
from ranking.schema import Owner


@dataclass(frozen=True)
class SideTable:
    """A table of users or items and its features.

    Attributes:
        owner: user or item.
        source: the table.
        features: its features.
        left_out: its columns that are not features.
        conversions: changes that it needs.
    """

    owner: Owner
    source: Source
    features: list[FeatureGuess]
    left_out: list[LeftOut]
    conversions: Conversions

    @property
    def copied(self) -> bool:
        """Whether training reads a copy of the table."""
        return self.source.is_csv or bool(self.conversions)

    def read(self) -> pa.Table:
        """Return the whole converted table, which training holds in memory too.

        Raises:
            LogError: the table cannot be read.
        """
        parts = [self.conversions.apply(rows, np.arange(rows.num_rows)) for _, rows in self.source.chunks()]
        return pa.concat_tables(parts, promote_options="permissive").combine_chunks()


def guess_side_table(
    source: Source, owner: Owner, key: str, reserved: Collection[str], shared: Mapping[str, Convert | None]
) -> SideTable:
    """Return the features of a side table.

    Args:
        source: the table.
        owner: user or item.
        key: name of the id column in the log, which the table must have too.
        reserved: columns of the log with another role, such as labels.
        shared: columns that are features of the log or of another table, with their conversions.

    Raises:
        LogError: the table has no id column.
    """
    columns = profile_columns(source.sample.rows)
    if key not in columns:
        raise LogError(
            f"{source.location}: has no column '{key}', the {owner} id of the log (found: {', '.join(columns)}); "
            f"rename its id column, or name the column of the log with --{owner}"
        )
    always: OwnerGuess = OwnerGuess(owner, f"column of the {owner}s table", sure=True)
    features: list[FeatureGuess] = []
    left_out: list[LeftOut] = []
    conversions = Conversions()
    for name, column in columns.items():
        if name == key or (name == VALID_FROM and column.kind == "time"):
            continue
        if name in shared:
            convert = shared[name]
        elif name in reserved:
            convert = None
            left_out.append(LeftOut(name, "the log has a column of this name with another role"))
        else:
            guess = guess_feature(column, lambda _: always)
            convert = guess.convert if isinstance(guess, FeatureGuess) else None
            if isinstance(guess, FeatureGuess):
                features.append(guess)
            else:
                left_out.append(guess)
        if convert is not None:
            conversions.converted[name] = convert
    return SideTable(owner, source, features, left_out, conversions)
