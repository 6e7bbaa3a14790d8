"""Define a ranker: schema, encoding, gates, model, frozen graph, bundle and metrics."""

from ranking.artifacts.bundle import load
from ranking.errors import (
    BundleError,
    ConfigError,
    InvalidInputError,
    LogError,
    NotConvergedError,
    OutputError,
    RankerError,
)
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Schema
from ranking.selection import Selection

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
