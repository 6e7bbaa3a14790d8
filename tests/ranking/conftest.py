"""Fixtures of the hand-made ranker."""

from tests.support.hand_ranker import *  # noqa: F403
