"""Fixtures: a repository of a small ranker, and a Redis server."""

from tests.support.feature_store_repositories import empty_redis, repository_with_tables, server  # noqa: F401
from tests.support.hand_ranker import *  # noqa: F403
