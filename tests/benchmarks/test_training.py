"""Tests of the training benchmark (``make bench-train``)."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.training import report, shape
from benchmarks.training.__main__ import CHOSEN, FULL, LIBRARIES, OURS, PARTS, main
from benchmarks.training.prepared import restore, write
from pipelines.config.config import load_config
from pipelines.training.labeled_batch import LabeledBatch, read_split
from ranking.encoding.encoder_fitter import EncoderFitter
from tests.pipelines.conftest import Shop

ROOT = Path(__file__).parents[2]


def ours(before: float, after: float) -> dict[str, Any]:
    return {
        "all_experts": before,
        "before_convergence": (before + after) / 2,
        "after_convergence": after,
        "all_steps": (before + after) / 2,
        "per_cpu_second": before,
        "experts": 8,
        "experts_chosen": 2,
        "seconds_in_all": 1.0,
        "peak_bytes": 2**20,
    }


def results() -> dict[str, Any]:
    turns = [
        {"slow": {"rows_per_second": 100.0}, "fast": {"rows_per_second": 200.0}, "ranker": ours(400.0, 1000.0)},
        {"slow": {"rows_per_second": 100.0}, "fast": {"rows_per_second": 100.0}, "ranker": ours(300.0, 900.0)},
        {"slow": {"rows_per_second": 50.0}, "fast": {"rows_per_second": 100.0}, "ranker": ours(250.0, 500.0)},
    ]
    measured = {
        "libraries": {"log": "KuaiRand", "turns": turns},
        "chosen": {"log": "KuaiRand", "turns": [{"small": turn["ranker"]} for turn in turns]},
        "rows": [{"rows": 1000, **ours(100, 300)}, {"rows": 2000, **ours(50, 150)}],
        "ids": [{"ids": 10, **ours(100, 300), "rank_peak_bytes": 2**19}],
        "score": {"rows": 5, "score": [60.0, 50.0], "graph": [100.0, 100.0]},
    }
    return {part: {"threads": 1, "measured": values} for part, values in measured.items()}


def test_report_compares_with_the_fastest_library_of_the_same_turn() -> None:
    text = report.format_report(results())
    assert "| ranker: all experts | 300 (250 – 400) | 2.50 (2.00 – 3.00) |" in text
    assert "| slow | 100 (50 – 100) | 0.50 (0.50 – 1.00) |" in text


def test_report_shows_the_speedup_of_chosen_experts_with_its_target() -> None:
    assert "| small | 2 of 8 | 2.50 (2.00 – 3.00) | 2.40 |" in report.format_report(results())


def test_report_shows_the_slowest_rate_and_the_rate_of_scoring() -> None:
    text = report.format_report(results())
    assert "Slowest relative to fastest: 50% (rows/s, all steps), 50% (rows per CPU second" in text
    assert "| `ranker score`, Parquet to Parquet | 55 (50 – 60) | 55% (50% – 60%) |" in text


def test_settings_are_valid_and_have_the_shared_shape(logs: Path) -> None:
    config = load_config(logs / "ranker.toml", list(shape.SETTINGS))
    assert (config.model.experts, config.model.expert_layers) == (shape.EXPERTS, shape.EXPERT_LAYERS)
    assert config.training.batch_size == shape.BATCH


def test_restored_rows_are_those_that_ranker_trains_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop")
    table = shop.table(40)
    shop.write(table.set_column(table.column_names.index("seconds"), "seconds", table["seconds"].fill_null(1.0)))
    config, fitter = shop.config(), EncoderFitter(shop.schema)
    for cleaned in shop.reader().scan():
        fitter.add(cleaned.rows)
    encoder = fitter.encoder()
    batch = LabeledBatch.concat(list(read_split(shop.reader(), config.logs, encoder, "train")))
    write(tmp_path / "rows", config, batch, {name: mapping.size for name, mapping in encoder.id_mappings.items()})
    rows = restore(tmp_path / "rows")
    assert np.array_equal(rows.y, batch.labels)
    assert np.array_equal(rows.x["user_id"], batch.inputs.ids[:, 0])
    assert np.array_equal(np.stack([rows.x[name] for name in rows.dense], 1), batch.inputs.dense)
    assert rows.tasks == {"click": True, "watch": False}
    (tags,) = (feature for feature in rows.sparse if feature.name == "tags")
    (bag,) = batch.inputs.bags
    ids = [part.tolist() for part in np.split(bag.values, np.cumsum(bag.lengths)[:-1])]
    assert [[i - 1 for i in row if i] for row in rows.x["tags"].tolist()] == ids
    assert rows.x["tags"].max() < tags.rows
    assert rows.x["tags"].shape[1] == tags.length


@pytest.mark.nightly(short="test_restored_rows_are_those_that_ranker_trains_on")
def test_main_measures_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the program: it measures in other processes and writes the results and the document."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)  # would also restrict the test process
    main(
        [
            *("--quick", "--threads", "1"),
            *("--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")),
        ]
    )
    measured = json.loads((tmp_path / "docs" / "results" / "training.json").read_text())
    assert set(measured) == set(PARTS)
    assert all(rate > 0 for rate in measured["score"]["measured"]["score"])
    assert (tmp_path / "docs" / "benchmarks.md").read_text().count("\n### ") == len(PARTS)
    (turn,) = measured["libraries"]["measured"]["turns"]
    installed = {name for name, (package, *_) in LIBRARIES.items() if importlib.util.find_spec(package)}
    assert set(turn) == installed | set(OURS)
    assert turn["ranker"]["all_experts"] > 0
    assert turn["ranker"]["after_convergence"] > 0


def test_published_results_have_the_current_sizes() -> None:
    published = json.loads((ROOT / "docs" / "results" / "training.json").read_text())
    assert set(published) == set(PARTS)
    assert len(published["libraries"]["measured"]["turns"]) == FULL.repeats
    assert set(LIBRARIES) | set(OURS) == set(published["libraries"]["measured"]["turns"][0])
    assert set(CHOSEN) == set(published["chosen"]["measured"]["turns"][0])
    assert [row["rows"] for row in published["rows"]["measured"]][: len(FULL.rows)] == list(FULL.rows)
    assert report.format_report(published) in (ROOT / "docs" / "benchmarks.md").read_text()
