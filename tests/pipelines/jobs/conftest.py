"""The ranker made by hand, published, and a real Redis."""

from tests.support.feature_store_repositories import (  # noqa: F401
    cluster,
    empty_cluster,
    empty_redis,
    repository_with_tables,
    server,
)
from tests.support.hand_ranker import *  # noqa: F403
