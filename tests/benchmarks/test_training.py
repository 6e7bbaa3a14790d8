"""``make bench-train``: rivals get the same rows, tables say what was measured, and the whole of it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.training import report, shape
from benchmarks.training.__main__ import CHOSEN, FULL, OURS, PARTS, RIVALS
from benchmarks.training.prepared import restore, write
from pipelines.config.config import load_config
from pipelines.training.labeled_batch import LabeledBatch, read_split
from ranking.encoding.encoder_fitter import EncoderFitter
from tests.pipelines.conftest import Shop

ROOT = Path(__file__).parent.parent


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
        "rivals": {"log": "KuaiRand", "turns": turns},
        "chosen": {"log": "KuaiRand", "turns": [{"small": turn["ranker"]} for turn in turns]},
        "rows": [{"rows": 1000, **ours(100, 300)}, {"rows": 2000, **ours(50, 150)}],
        "ids": [{"ids": 10, **ours(100, 300)}],
        "score": {"rows": 5, "score": [60.0, 50.0], "graph": [100.0, 100.0]},
    }
    return {part: {"threads": 1, "measured": found} for part, found in measured.items()}


class TestReport:
    def test_compares_with_the_faster_rival_of_the_same_turn(self) -> None:
        text = report.text(results())
        assert "| ranker: all experts | 300 (250 – 400) | 2.50 (2.00 – 3.00) |" in text
        assert "| slow | 100 (50 – 100) | 0.50 (0.50 – 1.00) |" in text

    def test_puts_the_gain_of_convergence_beside_its_aim(self) -> None:
        assert "| small | 2 of 8 | 2.50 (2.00 – 3.00) | 2.40 |" in report.text(results())

    def test_says_how_flat_rows_per_second_are_and_what_scoring_reaches(self) -> None:
        text = report.text(results())
        assert "Slowest of fastest: 50% of rows/s, all steps; 50% of rows per CPU second" in text
        assert "| `ranker score`, Parquet to Parquet | 55 (50 – 60) | 55% (50% – 60%) |" in text


def test_the_settings_are_ones_that_ranker_train_takes(logs: Path) -> None:
    config = load_config(logs / "ranker.toml", list(shape.SETTINGS))
    assert (config.model.experts, config.model.expert_layers) == (shape.EXPERTS, shape.EXPERT_LAYERS)
    assert config.training.batch_size == shape.BATCH


def test_rivals_get_the_rows_that_ranker_trains_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop")
    table = shop.table(40)
    shop.write(table.set_column(table.column_names.index("seconds"), "seconds", table["seconds"].fill_null(1.0)))
    config, fitter = shop.config(), EncoderFitter(shop.schema)
    for cleaned in shop.reader().scan():
        fitter.add(cleaned.rows)
    encoder = fitter.encoder()
    examples = LabeledBatch.concat(list(read_split(shop.reader(), config.logs, encoder, "train")))
    write(tmp_path / "rows", config, examples, {name: space.size for name, space in encoder.id_mappings.items()})
    rows = restore(tmp_path / "rows")
    assert np.array_equal(rows.y, examples.labels)
    assert np.array_equal(rows.x["user_id"], examples.inputs.ids[:, 0])
    assert np.array_equal(np.stack([rows.x[name] for name in rows.dense], 1), examples.inputs.dense)
    assert rows.tasks == {"click": True, "watch": False}
    (tags,) = (feature for feature in rows.sparse if feature.name == "tags")
    (bag,) = examples.inputs.bags
    ids = [part.tolist() for part in np.split(bag.values, np.cumsum(bag.lengths)[:-1])]
    assert [[i - 1 for i in row if i] for row in rows.x["tags"].tolist()] == ids
    assert rows.x["tags"].max() < tags.rows
    assert rows.x["tags"].shape[1] == tags.length


@pytest.mark.slow
def test_everything_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.training", "--quick", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, "--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    found = json.loads((tmp_path / "docs" / "results" / "training.json").read_text())
    assert set(found) == set(PARTS)
    (turn,) = found["rivals"]["measured"]["turns"]
    installed = {name for name, (package, *_) in RIVALS.items() if importlib.util.find_spec(package)}
    assert set(turn) == installed | set(OURS)
    assert turn["ranker"]["all_experts"] > 0
    assert turn["ranker"]["after_convergence"] > 0
    assert all(rate > 0 for rate in found["score"]["measured"]["score"])
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert text.count("\n### ") == len(PARTS)


def test_published_results_are_of_these_sizes() -> None:
    found = json.loads((ROOT / "docs" / "results" / "training.json").read_text())
    assert set(found) == set(PARTS)
    assert len(found["rivals"]["measured"]["turns"]) == FULL.repeats
    assert set(RIVALS) | set(OURS) == set(found["rivals"]["measured"]["turns"][0])
    assert set(CHOSEN) == set(found["chosen"]["measured"]["turns"][0])
    assert [row["rows"] for row in found["rows"]["measured"]][: len(FULL.rows)] == list(FULL.rows)
    assert report.text(found) in (ROOT / "docs" / "benchmarks.md").read_text()
