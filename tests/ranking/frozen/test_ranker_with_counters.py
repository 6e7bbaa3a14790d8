"""Frozen ranker with counters and histories: completed tables, bundles and ``ranker score``."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.cli.main import main
from ranking.artifacts import bundle
from ranking.artifacts.checksums import CHECKSUM_FILE, write_checksums
from ranking.errors import BundleError, InvalidInputError
from ranking.frozen.ranker import FrozenRanker
from tests.support.counted_ranker import NOW, ZONE, draw_events, make_counted_ranker


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "counters"


@pytest.fixture(scope="module")
def ranker(state: Path) -> FrozenRanker:
    return make_counted_ranker(state, text=True)


@pytest.fixture(scope="module")
def written(ranker: FrozenRanker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    golden = ranker.complete(draw_events(16, 9, text=True))
    bundle.write_bundle(ranker, golden, folder)
    return folder


def candidates() -> pa.Table:
    """Return candidates of a known, an unknown and a null user one hour after the state."""
    return pa.table(
        {
            "user_id": ["u1", "u2", "new", None],
            "item_id": ["v3", "v19", "v5", "new"],
            "tab": ["home", None, "search", "new"],
            "time": pa.array([NOW + 3_600_000_000] * 4, pa.timestamp("us", ZONE)),
        }
    )


def test_score_without_counter_columns_uses_the_state(ranker: FrozenRanker) -> None:
    completed = ranker.complete(candidates())
    assert completed["user_id_count"].to_pylist()[0] > 0
    assert completed["user_id_count"].to_pylist()[2:] == [0, 0]
    assert completed["clicked"].to_pylist()[0]
    scores, without = ranker.score(candidates()), replace(ranker, counter_features=None).score(candidates())
    assert not np.allclose(scores["click"].to_numpy(), without["click"].to_numpy(), rtol=1e-3, atol=0.0)
    assert scores.equals(ranker.score(completed))


def test_bundle_contains_the_state_and_scores_as_the_ranker(ranker: FrozenRanker, written: Path, state: Path) -> None:
    copied = {file.relative_to(written / "counters") for file in (written / "counters").rglob("*") if file.is_file()}
    assert copied == {file.relative_to(state) for file in state.rglob("*") if file.is_file()}
    assert ranking.load(written).score(candidates()).equals(ranker.score(candidates()))


@pytest.mark.parametrize("damage", ["no rows", "a row less"])
def test_bundle_with_damaged_state_is_rejected(written: Path, tmp_path: Path, damage: str) -> None:
    copied = shutil.copytree(written, tmp_path / "bundle")
    rows = copied / "counters" / "user_tab" / "rows.npy"
    if damage == "no rows":
        rows.write_bytes(b"")
    else:
        np.save(rows, np.load(rows)[:-1])
    (copied / CHECKSUM_FILE).unlink()
    write_checksums(copied)
    with pytest.raises(BundleError, match="inconsistent"):
        ranking.load(copied)


def test_golden_rows_keep_completed_values(ranker: FrozenRanker, written: Path) -> None:
    rows, _ = bundle.read_golden(written, ranker.schema)
    assert (
        rows["user_tags_count"].to_pylist()
        == ranker.complete(draw_events(16, 9, text=True))["user_tags_count"].to_pylist()
    )


def test_score_command_computes_the_features_of_counters(ranker: FrozenRanker, written: Path, tmp_path: Path) -> None:
    log = candidates().slice(0, 3)
    pq.write_table(log, tmp_path / "log.parquet")
    out = tmp_path / "scores.parquet"
    assert main(["score", str(written), "--logs", str(tmp_path / "log.parquet"), "--out", str(out)]) == 0
    assert pq.read_table(out)["watch"].equals(ranker.score(log)["watch"])


def test_time_of_another_type_raises(ranker: FrozenRanker) -> None:
    table = candidates()
    table = table.set_column(3, "time", pa.array(["noon"] * 4))
    with pytest.raises(InvalidInputError, match="holds string, but it is the time: write timestamps"):
        ranker.score(table)


def test_time_without_zone_is_local_time_of_the_log(ranker: FrozenRanker) -> None:
    table = candidates()
    local = table["time"].cast(pa.timestamp("us", ZONE)).combine_chunks()
    naive = table.set_column(3, "time", pc.local_timestamp(local))
    assert ranker.score(naive).equals(ranker.score(table))
