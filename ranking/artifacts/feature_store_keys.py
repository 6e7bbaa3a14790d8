"""Keys of the online feature store, which several programs share.

One key per id: ``PREFIX:MODEL:item:ID`` or ``PREFIX:MODEL:user:ID``. The value is a JSON object from column to
value, so that any program can update an item with one SET.

The sums of counters have keys of their own, because such a SET would erase them:
``PREFIX:MODEL:counters:GENERATION:ROOT:HASH``, see ``ranking.counters.stored_sums``. A load writes a generation of its
own, so that it never changes the values that the service reads and other commands add to.
"""

from __future__ import annotations

from ranking.schema import Owner

DEFAULT_KEY_PREFIX = "ranker"
"""Default prefix of all keys."""


def key_prefix(prefix: str, model: str, owner: Owner) -> str:
    """Return the part of a key before the id."""
    return f"{prefix}:{model}:{owner}:"


def counter_prefix(prefix: str, model: str, *, clustered: bool) -> str:
    """Return the start of all keys of counters, which no key of a user or an item has.

    It is followed by the name of a value that the generations share, or by a generation.

    Args:
        prefix: prefix of all keys.
        model: name of the model.
        clustered: whether the store is a Redis Cluster. The keys then have a hash tag, so that one server holds all
            counters of a model and can change them in one transaction.
    """
    return f"{{{prefix}:{model}:counters}}:" if clustered else f"{prefix}:{model}:counters:"


def counter_state_key(start: str) -> str:
    """Return the key of the sums over all keys, which name the current generation; ``start`` is a ``counter_prefix``.

    Earlier versions had a key ``state``, and values without a generation in their keys.
    """
    return f"{start}current"


def counter_key(start: str, generation: int, root: str, root_hash: int) -> str:
    """Return the key of the sums of one root; ``start`` is a ``counter_prefix``."""
    return f"{start}{generation:x}:{root}:{root_hash:x}"
