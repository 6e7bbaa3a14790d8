"""Which scope a path needs: one rule for the guard and for the OpenAPI document."""

from __future__ import annotations

from service.security.key_file import Scope

OPEN = ("/metrics", "/docs", "/openapi.json")
"""Needs no key: says nothing of users, and Prometheus, probes and browsers send none."""
OPEN_BELOW = "/v2/health/"
ADMIN_BELOW = "/v2/repository/"


def needed(path: str) -> Scope | None:
    """The scope that a request needs by its path; None: no key at all.

    Whatever is not named here needs ``rank``, so that nothing is open by oversight.
    """
    if path == "/v1/feedback":
        return "feedback"
    if path.startswith(ADMIN_BELOW):
        return "admin"
    if path in OPEN or path.startswith(OPEN_BELOW):
        return None
    return "rank"
