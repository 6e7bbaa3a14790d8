"""Bootstrap draws and labeled scores of chosen users."""

from __future__ import annotations

from typing import Any

import numpy as np

from ranking.metrics import LabeledScores, SamplingUnits, UnitDraws


def draw_users(users: Any, draws: int = 200, seed: int = 0) -> UnitDraws:
    """Return draws whose units are the users, however many rows each has; any integer is a known id."""
    ids = np.asarray(users, np.int64)
    distinct, codes = np.unique(ids, return_inverse=True)
    return UnitDraws(SamplingUnits("user", codes, len(distinct), ids - ids.min() + 1), draws, seed)


def labeled_scores(labels: Any, scores: Any, draws: UnitDraws, requests: Any = None, days: Any = None) -> LabeledScores:
    """Return all rows of the draws as one task."""
    return LabeledScores(
        np.asarray(labels, np.float64),
        np.asarray(scores, np.float64),
        draws.codes,
        draws.units.users,
        None if requests is None else np.asarray(requests, np.int64),
        None if days is None else np.asarray(days, np.int64),
    )
