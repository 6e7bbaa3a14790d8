"""A generator of feed traffic whose hidden tastes give the true probability of every label."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

USERS, ITEMS, STYLES = 60, 80, 6
TABS = ("home", "search")
LEVELS = {"click": -0.8, "like": -1.6}
"""Logit of each label for an average user and item."""


class FeedTruth:
    """Hidden tastes of users for styles, and hidden quality of items.

    Users have no features but their id. The style of an item and its price, which does not influence any label, are
    part of the request.

    Args:
        seed: seed of the tastes and of all further draws.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self._tastes = {label: self.random.normal(0, 1.6, (USERS, STYLES)) for label in LEVELS}
        self._quality = self.random.normal(0, 0.8, ITEMS)
        self._styles = self.random.permutation(np.arange(ITEMS) % STYLES)
        self._prices = self.random.exponential(10, ITEMS)

    def probabilities(self, label: str, users: Ids, items: Ids, tabs: Ids) -> Array:
        """Return P(label = 1) of impressions [rows]."""
        tastes = self._tastes[label][users, self._styles[items]]
        logits: Array = LEVELS[label] + tastes + self._quality[items] + 0.3 * tabs
        return 1 / (1 + np.exp(-logits))

    def draw(self, label: str, users: Ids, items: Ids, tabs: Ids) -> Ids:
        """Draw labels of impressions [rows] from their probabilities."""
        probabilities = self.probabilities(label, users, items, tabs)
        return (self.random.random(len(probabilities)) < probabilities).astype(np.int64)

    def features(self, item: int) -> dict[str, Any]:
        """Return the features of an item that a request sends; every fifth item has no price."""
        price = {} if item % 5 == 0 else {"price": float(self._prices[item])}
        return {"style": f"s{self._styles[item]}", **price}

    def request(self, name: str, time: datetime, user: int, items: Ids, tab: int) -> dict[str, Any]:
        """Return the body of a request to rank these items."""
        return {
            "request_id": name,
            "time": time.isoformat(),
            "user": {"id": f"u{user}"},
            "context": {"tab": TABS[tab]},
            "items": [{"id": f"v{item}", "features": self.features(item)} for item in items.tolist()],
        }

    def impressions(self, rows: int) -> tuple[Ids, Ids, Ids]:
        """Draw random users, items and tabs."""
        users, items = self.random.integers(USERS, size=rows), self.random.integers(ITEMS, size=rows)
        return users, items, self.random.integers(len(TABS), size=rows)
