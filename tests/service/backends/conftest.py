"""The ranker made by hand, which has every kind of feature."""

from tests.support.hand import *  # noqa: F403
