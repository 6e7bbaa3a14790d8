"""Which scope a path needs: one rule for the guard and for the OpenAPI document."""

from __future__ import annotations

from service.http.auth.key_file import Scope

PUBLIC = ("/metrics", "/docs", "/openapi.json")
"""Needs no key: says nothing of users, and Prometheus, probes and browsers send none."""
PUBLIC_PREFIX = "/v2/health/"
ADMIN_PREFIX = "/v2/repository/"


def required_scope(path: str) -> Scope | None:
    """The scope that a request needs by its path; None: no key at all.

    Whatever is not named here needs ``rank``, so that nothing is open by oversight.
    """
    if path == "/v1/feedback":
        return "feedback"
    if path.startswith(ADMIN_PREFIX):
        return "admin"
    if path in PUBLIC or path.startswith(PUBLIC_PREFIX):
        return None
    return "rank"
