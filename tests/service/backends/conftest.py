"""The handmade ranker, which has every kind of feature."""

from tests.support.hand_ranker import *  # noqa: F403
