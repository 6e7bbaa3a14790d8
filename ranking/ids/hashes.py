"""Hashes of ids, which are the same on every machine and in every version: published bundles depend on them.

Text is hashed with XXH3_128bits of its UTF-8, without a seed. The high 64 bits are its key, the low 64 bits its check.
Among n different ids, two have the same 128 bits with a probability of about n² / 2¹²⁹: 1.5 · 10⁻²¹ for a billion ids.
An id outside of the index has the hash of one in it with a probability of n / 2¹²⁸. XXH3 is fast but not cryptographic:
these probabilities do not hold for ids that are computed to collide.

Integers are mixed with the bijection of SplitMix64 (Steele, Lea and Flood 2014), so that their keys differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

HashArray = npt.NDArray[np.uint64]

Matches: TypeAlias = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Returns whether each row [n] of an index, whose key is equal, has the id at the position [n] in a query."""
IdQuery: TypeAlias = tuple[HashArray, Matches]
"""The key of each text [n] to look up in an index, and the function that compares its text with those of rows."""


def hash_texts(texts: Sequence[bytes]) -> tuple[HashArray, HashArray]:
    """Return the key and the check of each text [n].

    Args:
        texts: UTF-8.
    """
    digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, texts)), ">u8").astype(np.uint64)
    return digests[::2], digests[1::2]


def hash_integers(ids: npt.NDArray[np.int64]) -> HashArray:
    """Return the key of each integer [n]."""
    key: HashArray = ids.view(np.uint64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def to_utf8(ids: pa.Array) -> list[Any]:
    """Return the UTF-8 of each string [n]; None for null."""
    texts: list[Any] = ids.view(pa.binary()).to_pylist()
    return texts
