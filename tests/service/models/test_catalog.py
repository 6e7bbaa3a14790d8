"""Manifests, evaluations and reports of published versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ranking
from ranking.artifacts import bundle
from ranking.errors import BundleError
from service.models import catalog


def test_entry_describes_the_bundle(repository: Path) -> None:
    entry, ranker = catalog.read_entry(repository, "feed", 1), ranking.load(repository / "feed" / "1")
    assert entry.schema == ranker.schema
    assert entry.selection == ranker.selection
    assert entry.objective == dict(ranker.objective)
    assert entry.trained_until == ranker.details["trained_until"]


@pytest.mark.parametrize("read", [catalog.read_evaluation, catalog.read_report])
def test_document_of_a_version_without_it_is_none(repo: Path, read: Callable[[Path, str, int], Any]) -> None:
    for name in bundle.DOCUMENTS:
        (repo / "feed" / "2" / name).unlink(missing_ok=True)
    assert read(repo, "feed", 2) is None
    assert not catalog.has_report(repo, "feed", 2)


def test_document_above_the_maximum_size_is_rejected(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_DOCUMENT_BYTES", 100)
    (repo / "feed" / "2" / bundle.REPORT).write_bytes(b"x" * 101)
    with pytest.raises(BundleError, match="report"):
        catalog.read_report(repo, "feed", 2)


def test_report_that_is_a_folder_is_rejected(repo: Path) -> None:
    (repo / "feed" / "2" / bundle.REPORT).mkdir()
    with pytest.raises(BundleError):
        catalog.read_report(repo, "feed", 2)


def test_publication_time_of_an_unknown_version_is_none(repository: Path) -> None:
    assert catalog.published_at(repository, "feed", 1) is not None
    assert catalog.published_at(repository, "feed", 9) is None
