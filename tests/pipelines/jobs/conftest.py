"""The ranker made by hand, published, and a real Redis."""

from tests.support.feature_store_repositories import empty_redis, server, repository_with_tables  # noqa: F401
from tests.support.hand_ranker import *  # noqa: F403
