"""Tests of the description of the machine in the results of ``ranker bench``."""

from __future__ import annotations

import os
from importlib.metadata import version

import pytest

from pipelines.bench import benchmark


def test_describe_machine_names_the_versions_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PACKAGES", ("uvicorn", "not-installed"))
    machine = benchmark.describe_machine()
    assert (machine["uvicorn"], machine["not-installed"]) == (version("uvicorn"), None)
    assert machine["cores"] == len(os.sched_getaffinity(0))
