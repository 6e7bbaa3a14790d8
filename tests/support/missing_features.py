"""What is missing, candidate by candidate."""

from __future__ import annotations

from service.engine.request_encoder import MissingFeatures


def by_candidate(missing: MissingFeatures) -> list[list[str]]:
    """Names of the features that each candidate lacks."""
    names, patterns = missing.patterns()
    return [names[pattern] for pattern in patterns]
