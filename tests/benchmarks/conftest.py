"""Fixtures of the benchmark tests."""

from __future__ import annotations

from tests.support.reference_bundle import ranker, reference

__all__ = ["ranker", "reference"]
