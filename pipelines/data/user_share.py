"""A share of the users, chosen by the hash of their ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.columns import canonical_ids
from ranking.encoding.vocabulary import hash_column, mix_hashes

SALT = np.int64(0x5EED)
"""Mixed into the hashes, so that the share is independent of ``hash_buckets`` and of the users of a canary."""


def describe_share(share: float) -> str:
    """Return a share as the end of a phrase such as "9 rows of 1 % of the users"; empty for all users."""
    return "" if share == 1 else f" of {100 * share:g} % of the users"


def in_share(users: pa.ChunkedArray, share: float) -> npt.NDArray[np.bool_]:
    """Return the mask of the rows whose user is in the share [rows].

    The choice depends on the id and the share alone. A larger share contains a smaller one. A row without a user is in
    no share below 1. The same id as an integer, a float or text is the same user.

    Args:
        users: user id of each row.
        share: share of the users, above 0 and at most 1.
    """
    if share == 1:
        return np.ones(len(users), np.bool_)
    hashes = hash_column(canonical_ids(users.combine_chunks(), "user"))
    mixed = mix_hashes([hashes, np.full(len(hashes), SALT)])
    chosen: npt.NDArray[np.bool_] = (hashes != 0) & (mixed < share * 2.0**63)
    return chosen
