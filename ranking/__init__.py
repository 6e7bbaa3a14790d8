"""Define a ranker: schema, encoding, gates, model, frozen graph, bundle and metrics."""

from typing import TYPE_CHECKING

from ranking.errors import (
    BundleError,
    ConfigError,
    InvalidInputError,
    LogError,
    NotConvergedError,
    OutputError,
    RankerError,
)
from ranking.selection import Selection

if TYPE_CHECKING:
    from ranking.artifacts.bundle import load
    from ranking.frozen.ranker import FrozenRanker
    from ranking.schema import Schema
else:

    def __getattr__(name: str) -> object:
        """Import these names on first use, so that `ranking.client` loads without the packages of models."""
        if name == "FrozenRanker":
            from ranking.frozen.ranker import FrozenRanker

            return FrozenRanker
        if name == "Schema":
            from ranking.schema import Schema

            return Schema
        if name == "load":
            from ranking.artifacts.bundle import load

            return load
        raise AttributeError(f"module 'ranking' has no attribute {name!r}")


__all__ = [
    "BundleError",
    "ConfigError",
    "FrozenRanker",
    "InvalidInputError",
    "LogError",
    "NotConvergedError",
    "OutputError",
    "RankerError",
    "Schema",
    "Selection",
    "load",
]
