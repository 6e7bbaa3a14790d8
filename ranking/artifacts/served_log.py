"""Format of the files of the served log, which the service writes and the offline pipeline reads."""

from __future__ import annotations

from typing import Final

FORMAT: Final = 1
"""Version of the format."""
METADATA_KEY: Final = b"ranker.served"
"""Key of a file's metadata that holds JSON about the model and its columns."""
SHOWN: Final = "shown"
"""Label of feedback that marks the items that were shown, unless ``ranker join --shown`` names another."""
MISSING, REQUEST, STORE, BUNDLE, COMPUTED = range(5)
"""Sources of a value: none, the request, the feature store, a table of the bundle, or a counter or history."""


def source_column(owner: str) -> str:
    """Return the name of the column with the sources of an owner's values.

    A value of the column is binary, with one byte for each column of the owner, in the order of the metadata.
    """
    return f"source.{owner}"
