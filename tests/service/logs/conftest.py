"""Fixtures: a small ranker with all kinds of features, repositories that serve it, and a Redis server."""

from tests.support.feature_store_repositories import (  # noqa: F401
    empty_redis,
    repository_with_tables,
    repository_without_tables,
    server,
)
from tests.support.hand_ranker import *  # noqa: F403
