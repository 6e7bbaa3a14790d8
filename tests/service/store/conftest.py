"""The ranker made by hand, published, and a real Redis."""

from tests.hand import *  # noqa: F403
from tests.service.store.repositories import empty, server, with_tables, without_tables  # noqa: F401
