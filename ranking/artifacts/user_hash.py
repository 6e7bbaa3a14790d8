"""Keyed hashes that replace user ids in the served log."""

from __future__ import annotations

import hashlib

HASH_BYTES = 16
"""Size of a hashed user id. Two of 10⁹ users have the same hash with a probability below 10⁻²⁰."""


class UserHash:
    """Replaces user ids by keyed hashes, from which the ids cannot be found without the key.

    Args:
        key: the key; it may have any length.
    """

    def __init__(self, key: str) -> None:
        self._key = hashlib.blake2b(key.encode()).digest()

    def __call__(self, user: int | str) -> str:
        """Return the hash of a user id as 32 hexadecimal digits. An integer has the hash of its decimal text."""
        text = str(user).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=HASH_BYTES, key=self._key).hexdigest()
