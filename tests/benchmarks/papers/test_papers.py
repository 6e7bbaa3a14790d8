"""Tests of ``python -m benchmarks.papers``: experiments from their data to their document, and published results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.papers.__main__ import EXPERIMENTS, RESULTS, format_document, main
from tests.benchmarks.papers.image_files import write_images
from tests.benchmarks.papers.test_movielens import write_raw

PUBLISHED = ("recovery", "synthetic", "recommender", "vision", "decomposition", "specialization")
"""Experiments whose full form has been run."""

RAW = {"movielens": write_raw} | dict.fromkeys(("vision", "decomposition", "specialization"), write_images)
"""Functions that write the original data that the quick form of an experiment needs."""


LONG = ("recommender", "movielens", "vision", "specialization")
"""Experiments whose quick form takes more than 5 s."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in EXPERIMENTS]
)
def test_quick_form_writes_numbers_tables_and_figures(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects each experiment from its data to its document."""
    raw = ["--raw", str(RAW[name](tmp_path / "raw"))] if name in RAW else []
    assert main([name, "--quick", "--out", str(tmp_path), *raw]) == 0
    results = json.loads((tmp_path / f"{name}.json").read_text())
    assert results["command"] == f"python -m benchmarks.papers {name}{' --raw DIR' if raw else ''} --quick"
    text = (tmp_path / f"{name}.md").read_text()
    assert text == format_document(name, results)
    assert text.strip() in capsys.readouterr().out
    assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_document_is_that_of_the_published_numbers(name: str) -> None:
    results = json.loads((RESULTS / f"{name}.json").read_text())
    raw = " --raw DIR" if hasattr(EXPERIMENTS[name], "RAW") else ""
    assert results["command"] == f"python -m benchmarks.papers {name}{raw}"
    assert results["seeds"] == EXPERIMENTS[name].SEEDS
    assert (RESULTS / f"{name}.md").read_text() == format_document(name, results)
    assert (RESULTS / f"{name}.svg").exists()


def test_wrong_arguments_are_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        ("recovery", "--seeds", "1", "--out", "x"): "--seeds: a paired interval needs at least 2",
        ("recovery", "--seeds", "0", "--out", "x"): "--seeds: a paired interval needs at least 2",
        (
            "recovery",
            "--quick",
        ): "--quick and --seeds need --out DIR, so that they do not replace the published results",
        ("recovery", "--raw", "x", "--out", "x"): "--raw: recovery does not read an original data set",
        ("unknown",): "invalid choice: 'unknown' (choose from",
    }
    for arguments, message in wrong.items():
        with pytest.raises(SystemExit):
            main(list(arguments))
        assert message in capsys.readouterr().err
