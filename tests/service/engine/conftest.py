"""The ranker made by hand, which has every kind of feature."""

from tests.hand import *  # noqa: F403
