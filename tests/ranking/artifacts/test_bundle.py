"""Bundles: round trips, verification of every byte, inconsistent files, and loading without optional packages."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

import ranking
from ranking.artifacts import bundle
from ranking.artifacts.checksums import CHECKSUM_FILE, write_checksums
from ranking.encoding import feature_table
from ranking.encoding.batch import Float32
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import BundleError, OutputError
from ranking.frozen.calibration import Calibration, Isotonic, Platt
from ranking.frozen.embedding_rows import RowType, encoded
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.model.mmoe import MMoE
from ranking.selection import Selection
from ranking.settings.gate import GateConfig, SoftmaxConfig
from tests.support.encoded_batches import assert_equal_batches
from tests.support.one_model import weights_of, with_weights

DrawRows = Callable[[int, int], pa.Table]

FILES = [
    "SHA256SUMS",
    "body.onnx",
    "encoder/buckets/age_band.parquet",
    "encoder/buckets/day_part.parquet",
    "encoder/scales.parquet",
    "encoder/vocabularies/genres.parquet",
    "encoder/vocabularies/item_id.parquet",
    "encoder/vocabularies/tab.parquet",
    "encoder/vocabularies/user_id.parquet",
    "golden.parquet",
    "items.parquet",
    "items/keys.npy",
    "items/rows.npy",
    "items/starts.npy",
    "items/values.npy",
    "manifest.json",
    "users.parquet",
    "users/checks.npy",
    "users/keys.npy",
    "users/rows.npy",
    "users/starts.npy",
    "users/values.npy",
    "weights.safetensors",
]


@pytest.fixture(scope="module")
def golden(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> pa.Table:
    return hand_ranker.complete(draw_rows(16, 11))


@pytest.fixture(scope="module")
def written(hand_ranker: FrozenRanker, golden: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of the hand-made ranker; read-only."""
    folder = tmp_path_factory.mktemp("written") / "bundle"
    bundle.write_bundle(hand_ranker, golden, folder)
    return folder


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """Copy of the bundle that tests may damage."""
    return Path(shutil.copytree(written, tmp_path / "bundle"))


def edit_manifest(folder: Path, **changes: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    write_checksums(folder)


def load_error(folder: Path) -> str:
    """Return the error message of loading a bundle."""
    with pytest.raises(BundleError) as caught:
        ranking.load(folder)
    return str(caught.value)


# Round trips.


def test_load_returns_a_ranker_with_the_same_scores(
    written: Path, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    loaded = ranking.load(written)
    for tasks in (None, ["watch"], ["rating", "click"]):
        assert loaded.score(draw_rows(100, 12), tasks).equals(hand_ranker.score(draw_rows(100, 12), tasks))


@pytest.mark.parametrize(("row_type", "version"), [("float32", 3), ("float16", 4), ("int8", 4)])
def test_bundle_with_compact_embeddings_is_smaller_and_has_the_same_scores(
    hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path, row_type: RowType, version: int
) -> None:
    compact = with_weights(hand_ranker, encoded(weights_of(hand_ranker), row_type))
    bundle.write_bundle(compact, golden, tmp_path / "bundle")
    loaded = bundle.load(tmp_path / "bundle")
    assert loaded.embeddings == compact.embeddings == row_type
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["format"] == version
    np.testing.assert_array_equal(loaded.score(golden)["click"].to_numpy(), compact.score(golden)["click"].to_numpy())
    sizes = {
        name: sum(weight.nbytes for key, weight in weights_of(ranker).items() if key.startswith("embedding."))
        for name, ranker in (("compact", loaded), ("exact", hand_ranker))
    }
    assert (sizes["compact"] < sizes["exact"]) == (row_type != "float32")


def test_loaded_ranker_can_be_pickled(written: Path, golden: pa.Table) -> None:
    """Workers of Ray and Spark receive rankers, or functions that use one."""
    ranker = bundle.load(written)
    copies = [pickle.loads(pickle.dumps(value)) for value in (ranker, ranker, ranker.score)]
    assert copies[0] is copies[1], "a process loads a bundle once"
    assert copies[2](golden).equals(ranker.score(golden))


def test_changed_ranker_cannot_be_pickled(written: Path) -> None:
    """It would be replaced by the one of the bundle."""
    with pytest.raises(TypeError, match=r"only a ranker that 'ranking\.load' returned can be pickled"):
        pickle.dumps(replace(bundle.load(written), objective={}))


def test_load_restores_schema_selection_objective_details_and_tables(written: Path, hand_ranker: FrozenRanker) -> None:
    loaded = ranking.load(str(written))
    assert loaded.schema == hand_ranker.schema
    assert loaded.selection == hand_ranker.selection
    assert loaded.objective == hand_ranker.objective
    assert loaded.details == hand_ranker.details
    assert {owner: table.table for owner, table in loaded.tables.items()} == {
        owner: table.table for owner, table in hand_ranker.tables.items()
    }


def test_load_restores_feature_indexes(written: Path, hand_ranker: FrozenRanker) -> None:
    loaded = ranking.load(written)
    assert loaded.encoded.keys() == hand_ranker.encoded.keys() == {"user", "item"}
    for owner, ids in (("user", ["u3", "u19", "u20"]), ("item", [7, 0, 30])):
        index, expected = (ranker.encoded[owner] for ranker in (loaded, hand_ranker))
        assert (index.rows(ids) >= 0).tolist() == [True, True, False]
        assert_equal_batches(index.take(index.rows(ids)), expected.take(expected.rows(ids)))


def test_feature_tables_are_read_once_on_first_access(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables_read: list[str] = []

    def read_table(rows: pa.Table, key: str) -> FeatureTable:
        tables_read.append(key)
        return FeatureTable(rows, key)

    monkeypatch.setattr(feature_table, "FeatureTable", read_table)
    loaded = ranking.load(written)
    assert set(loaded.tables) == {"user", "item"}
    assert len(loaded.encoded["item"]) == 30
    assert tables_read == []
    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(loaded.tables.__getitem__, ["item"] * 8))
    assert all(table is tables[0] for table in tables)
    assert tables_read == ["item_id"]


def test_loaded_ranker_works_after_its_folder_is_deleted(
    copied: Path, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    loaded = ranking.load(copied)
    shutil.rmtree(copied)
    assert loaded.score(draw_rows(20, 14)).equals(hand_ranker.score(draw_rows(20, 14)))
    assert loaded.encoded["user"].rows(["u1", "?"]).tolist() == hand_ranker.encoded["user"].rows(["u1", "?"]).tolist()


def test_write_bundle_stores_weights_of_any_memory_layout(
    hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    fortran_weights = {name: np.asfortranarray(weight) for name, weight in weights_of(hand_ranker).items()}
    bundle.write_bundle(with_weights(hand_ranker, fortran_weights), golden, tmp_path / "bundle")
    loaded = ranking.load(tmp_path / "bundle")
    assert all(np.array_equal(weight, weights_of(hand_ranker)[name]) for name, weight in weights_of(loaded).items())


def test_table_without_features_has_no_feature_index(hand_ranker: FrozenRanker) -> None:
    schema = hand_ranker.schema.restricted([f.name for f in hand_ranker.schema.inputs if f.owner != "user"])
    encoder = hand_ranker.encoder.restricted([feature.name for feature in schema.features])
    assert schema.owners == {"item", "context"}
    ranker = replace(hand_ranker, schema=schema, encoder=encoder)
    assert ranker.encoded.keys() == {"item"}


def test_bundle_of_ranker_without_tables_loads(hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path) -> None:
    bundle.write_bundle(replace(hand_ranker, tables={}), golden, tmp_path / "bundle")
    assert not (tmp_path / "bundle" / "users.parquet").exists()
    loaded = ranking.load(tmp_path / "bundle")
    assert loaded.tables == {}
    assert loaded.encoded == {}
    assert loaded.score(golden).equals(hand_ranker.score(golden))


def test_read_golden_returns_the_written_rows_and_scores(
    written: Path, hand_ranker: FrozenRanker, golden: pa.Table
) -> None:
    inputs, scores = bundle.read_golden(written, hand_ranker.schema)
    assert inputs.equals(golden.select(inputs.column_names))
    assert inputs.column_names == list(dict.fromkeys(feature.column for feature in hand_ranker.schema.inputs))
    assert scores.equals(hand_ranker.score(golden).drop(["score"]))


def test_read_bundle_verifies_files_but_not_golden_scores(
    copied: Path, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    with_golden(copied, lambda golden: golden.slice(0, 0))
    with pytest.raises(BundleError, match=r"golden\.parquet"):
        bundle.read_bundle(copied)
    (copied / "golden.parquet").write_text("x")
    write_checksums(copied)
    assert bundle.read_bundle(copied).score(draw_rows(20, 14)).equals(hand_ranker.score(draw_rows(20, 14)))


def test_write_bundle_is_deterministic(
    written: Path, hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    bundle.write_bundle(hand_ranker, golden, tmp_path / "again")
    assert (tmp_path / "again" / CHECKSUM_FILE).read_text() == (written / CHECKSUM_FILE).read_text()


def test_bundle_without_golden_rows_loads(hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path) -> None:
    bundle.write_bundle(hand_ranker, golden.slice(0, 0), tmp_path / "bundle")
    assert ranking.load(tmp_path / "bundle").schema == hand_ranker.schema


# Files of a bundle.


def test_bundle_holds_the_documented_files(written: Path) -> None:
    assert sorted(file.relative_to(written).as_posix() for file in written.rglob("*") if file.is_file()) == FILES


def test_bundle_holds_only_data_files(written: Path, bundle: Path) -> None:
    for folder in (written, bundle):
        for file in folder.rglob("*"):
            assert not file.is_symlink()
            if file.is_file():
                assert file.name == "SHA256SUMS" or file.suffix in {
                    ".json",
                    ".npy",
                    ".onnx",
                    ".parquet",
                    ".safetensors",
                }
                assert not file.stat().st_mode & 0o111, f"{file} is executable"


def test_manifest_describes_the_bundle(written: Path) -> None:
    manifest = json.loads((written / "manifest.json").read_text())
    assert manifest["format"] == 3
    assert manifest["name"] == "hand"
    assert manifest["selection"]["experts_used"] == [0, 1, 2, 3]
    assert manifest["objective"] == {"click": 1.0, "like": 2.0}
    assert manifest["details"] == {"made_by": "hand"}


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        ({"click": 0.0, "like": 0}, "objective: every weight is 0"),
        ({"click": 1e308}, "objective: click: must be at most 1e+06"),
        ({"click": float("nan")}, "objective: click: "),
        ({"click": "1"}, "objective: click: must be a number"),
        ({"clack": 1.0}, "objective: 'clack' is not a task (tasks: click, like, watch, rating)"),
        ([], "objective: must be a table"),
    ],
)
def test_load_invalid_objective_is_rejected(copied: Path, objective: Any, reason: str) -> None:
    edit_manifest(copied, objective=objective)
    assert f"{copied}/manifest.json: {reason}" in load_error(copied)


def test_sha256sum_verifies_a_bundle(written: Path, copied: Path) -> None:
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    process = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count(": OK\n") == len(FILES) - 1
    (copied / "golden.parquet").write_bytes(b"")
    assert subprocess.run(command, cwd=copied, capture_output=True, check=False).returncode == 1


# Damage.


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_byte, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_load_damaged_or_missing_file_is_named(copied: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(copied / name)
    assert name in load_error(copied)


@pytest.mark.parametrize("name", ["run.py", "encoder/more.parquet", ".hidden", "encoder/SHA256SUMS"])
def test_load_added_file_is_named(copied: Path, name: str) -> None:
    (copied / name).write_text("x")
    assert f"{name} is not listed" in load_error(copied)


def test_load_folder_that_is_not_a_bundle_is_rejected(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        assert "ranker freeze" in load_error(folder)


CALIBRATION = Calibration(
    {"click": Platt(slope=0.5, shift=-1.0), "like": Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))}
)


def test_load_restores_the_calibration(
    make_model: Callable[[], MMoE], hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    ranker = freeze(make_model(), hand_ranker.encoder, hand_ranker.tables, {}, calibration=CALIBRATION)
    bundle.write_bundle(ranker, golden, tmp_path / "bundle")
    loaded = ranking.load(tmp_path / "bundle")
    assert loaded.calibration.tasks == CALIBRATION.tasks
    assert loaded.score(golden).equals(ranker.score(golden))
    assert not loaded.score(golden).equals(hand_ranker.score(golden))


def test_load_bundle_without_calibration_key(copied: Path, hand_ranker: FrozenRanker, golden: pa.Table) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    del manifest["calibration"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    write_checksums(copied)
    assert ranking.load(copied).score(golden).equals(hand_ranker.score(golden))


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        ({"click": {"kind": "platt", "slope": -1.0, "shift": 0.0}}, "click.slope: must be greater than 0"),
        ({"click": {"kind": "platt", "slope": 1e999, "shift": 0.0}}, "click.slope: must be a finite number"),
        ({"click": {"kind": "isotonic", "inputs": [0.0, 1.0], "outputs": [1.0, 0.0]}}, "click: outputs must increase"),
        ({"click": {"kind": "spline"}}, "click: kind is 'spline'; choose platt or isotonic"),
        (
            {"watch": {"kind": "platt", "slope": 1.0, "shift": 0.0}},
            "'watch' is not a binary task (binary tasks: click, like)",
        ),
        (
            {"buy": {"kind": "platt", "slope": 1.0, "shift": 0.0}},
            "'buy' is not a binary task (binary tasks: click, like)",
        ),
        ([1], "must be a table of keys and values"),
    ],
)
def test_load_invalid_calibration_is_rejected(copied: Path, calibration: Any, reason: str) -> None:
    edit_manifest(copied, calibration=calibration)
    text = load_error(copied)
    assert f"{copied}/manifest.json: calibration: " in text
    assert reason in text


def test_load_unknown_format_is_rejected(copied: Path) -> None:
    for number in (1, 7):
        edit_manifest(copied, format=number)
        text = load_error(copied)
        assert f"{copied}/manifest.json: format {number} is not supported (supported: 2, 3, 4, 5, 6)" in text
        assert "update" in text
        assert "freeze the run again" in text


def test_load_different_golden_scores_are_rejected(copied: Path) -> None:
    golden = pq.read_table(copied / "golden.parquet")
    scores = pa.Table.from_struct_array(golden["scores"].combine_chunks())
    like = scores["like"].to_numpy().copy()
    like[3] += 0.01
    changed = scores.set_column(1, "like", pa.array(like))
    struct = pa.StructArray.from_arrays(
        [column.combine_chunks() for column in changed.columns], names=changed.column_names
    )
    pq.write_table(golden.set_column(1, "scores", struct), copied / "golden.parquet")
    write_checksums(copied)
    text = load_error(copied)
    assert "golden rows score differently" in text
    assert "task 'like', by up to 0.01" in text


def test_load_different_weights_are_rejected_by_golden_scores(copied: Path) -> None:
    weights = load_file(copied / "weights.safetensors")
    weights["tower.watch.1.bias"] = weights["tower.watch.1.bias"] + 0.01
    save_file(weights, copied / "weights.safetensors")
    write_checksums(copied)
    assert "golden rows score differently on this machine (task 'watch'" in load_error(copied)


def without_weight(folder: Path, name: str) -> None:
    weights = load_file(folder / "weights.safetensors")
    del weights[name]
    save_file(weights, folder / "weights.safetensors")


def with_weight(folder: Path, name: str, weight: Float32) -> None:
    weights = load_file(folder / "weights.safetensors") | {name: weight}
    save_file(weights, folder / "weights.safetensors")


def widen(folder: Path, name: str) -> None:
    """Add one output to the last layer."""
    weights = load_file(folder / "weights.safetensors")
    last = max(key.removesuffix(".bias") for key in weights if key.startswith(f"{name}.") and key.endswith(".bias"))
    for key in (f"{last}.weight", f"{last}.bias"):
        weights[key] = np.concatenate([weights[key], weights[key][..., :1]], -1)
    save_file(weights, folder / "weights.safetensors")


def with_golden(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(folder / "golden.parquet")), folder / "golden.parquet")


def fewer_scores(golden: pa.Table) -> pa.Table:
    scores = golden["scores"].combine_chunks()
    return golden.set_column(
        1, "scores", pa.StructArray.from_arrays([scores.field(0)], names=[scores.type.field(0).name])
    )


SELECTION = {"num_experts": 5, "k": 2}
REJECTED_BY_READ: dict[str, Callable[[Path], object]] = {
    "missing embedding": lambda f: without_weight(f, "embedding.genres"),
    "embedding with too few rows": lambda f: with_weight(f, "embedding.user_id", np.zeros((2, 4), np.float32)),
    "missing weight of an expert": lambda f: without_weight(f, "expert.1.0.weight"),
    "missing bias of an expert": lambda f: without_weight(f, "expert.1.0.bias"),
    "missing layer of a tower": lambda f: without_weight(f, "tower.like.0.weight"),
    "weight of another shape": lambda f: with_weight(f, "expert.1.1.weight", np.zeros((3, 8), np.float32)),
    "expert wider than the others": lambda f: widen(f, "expert.1"),
    "tower with two outputs": lambda f: widen(f, "tower.like"),
    "weight that is not a matrix": lambda f: with_weight(f, "expert.1.0.weight", np.zeros(8, np.float32)),
    "manifest that is a list": lambda f: (f / "manifest.json").write_text("[]"),
    "manifest that is not JSON": lambda f: (f / "manifest.json").write_text("{"),
    "empty manifest": lambda f: (f / "manifest.json").write_text("{}"),
    "selection with a list of tasks": lambda f: edit_manifest(f, selection=SELECTION | {"tasks": []}),
    "selection without tasks": lambda f: edit_manifest(f, selection=SELECTION | {"tasks": {}}),
    "selection of other tasks": lambda f: edit_manifest(f, selection=SELECTION | {"tasks": {"buy": {"0": 1.0}}}),
    "empty schema": lambda f: edit_manifest(f, schema={}),
    "weights that are not safetensors": lambda f: (f / "weights.safetensors").write_text("x"),
    "feature table that is not Parquet": lambda f: (f / "users.parquet").write_text("x"),
    "feature table without its id column": lambda f: pq.write_table(pa.table({"x": [1]}), f / "users.parquet"),
    "missing feature index": lambda f: shutil.rmtree(f / "items"),
    "missing rows of a feature index": lambda f: (f / "items" / "rows.npy").unlink(),
    "rows of another feature index": lambda f: shutil.copy(f / "users" / "rows.npy", f / "items" / "rows.npy"),
    "index of text with the checks of fewer ids": lambda f: np.save(
        f / "users" / "checks.npy", np.load(f / "users" / "checks.npy")[1:]
    ),
    "array of another type": lambda f: np.save(f / "items" / "keys.npy", np.zeros(31)),
    "vocabulary without ids": lambda f: pq.write_table(
        pa.table({"key": [1]}), f / "encoder" / "vocabularies" / "tab.parquet"
    ),
    "missing vocabulary": lambda f: (f / "encoder" / "vocabularies" / "tab.parquet").unlink(),
    "missing scale of a number": lambda f: pq.write_table(
        pq.read_table(f / "encoder" / "scales.parquet").slice(1), f / "encoder" / "scales.parquet"
    ),
}
REJECTED_BY_GOLDEN: dict[str, Callable[[Path], object]] = {
    "missing golden scores": lambda f: with_golden(f, lambda golden: golden.select(["inputs"])),
    "missing golden inputs": lambda f: with_golden(f, lambda golden: golden.select(["scores"])),
    "golden scores of one task only": lambda f: with_golden(f, fewer_scores),
    "golden rows that are not Parquet": lambda f: (f / "golden.parquet").write_text("x"),
}


@pytest.mark.parametrize("damage", REJECTED_BY_READ)
def test_read_bundle_inconsistent_files_are_rejected(copied: Path, damage: str) -> None:
    REJECTED_BY_READ[damage](copied)
    write_checksums(copied)
    with pytest.raises(BundleError, match=str(copied)):
        bundle.read_bundle(copied)


@pytest.mark.parametrize("damage", REJECTED_BY_GOLDEN)
def test_load_inconsistent_golden_rows_are_rejected(copied: Path, damage: str) -> None:
    REJECTED_BY_GOLDEN[damage](copied)
    write_checksums(copied)
    assert str(copied) in load_error(copied)


def test_load_invalid_schema_names_the_feature(copied: Path) -> None:
    schema = json.loads((copied / "manifest.json").read_text())["schema"]
    schema["features"][1]["color"] = "red"
    edit_manifest(copied, schema=schema)
    text = load_error(copied)
    assert f"{copied}/manifest.json: " in text
    assert "'item_id'.color: unknown key" in text


# Writing.


def test_bundle_files_are_readable_by_other_users(hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path) -> None:
    bundle.write_bundle(hand_ranker, golden, tmp_path / "bundle")
    for path in (tmp_path / "bundle").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, path


def test_write_bundle_to_existing_folder_is_rejected(
    hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(OutputError, match="exists and is never overwritten"):
        bundle.write_bundle(hand_ranker, golden, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_write_bundle_that_fails_leaves_nothing_behind(
    hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    with pytest.raises(KeyError, match="words"):
        bundle.write_bundle(hand_ranker, golden.drop_columns(["words"]), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


# Loading without optional packages.

WITHOUT = """
import sys

BLOCKED = {packages}


class ImportBlocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{{name}} is blocked by the test")


sys.meta_path.insert(0, ImportBlocker())

import pyarrow.parquet as pq

import ranking

_, folder, rows, out = sys.argv
{script}
assert not BLOCKED & set(sys.modules)
"""


def run_without(packages: set[str], script: str, folder: Path, rows: pa.Table, work: Path) -> pa.Table:
    """Run a script on a bundle and rows in a process without these packages, and return the table it writes."""
    pq.write_table(rows, work / "rows.parquet")
    files = [str(folder), str(work / "rows.parquet"), str(work / "out.parquet")]
    command = [sys.executable, "-c", WITHOUT.format(packages=packages, script=script), *files]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    assert process.returncode == 0, process.stderr
    return pq.read_table(work / "out.parquet")


SCORE = "pq.write_table(ranking.load(folder).score(pq.read_table(rows)), out)"


@pytest.mark.nightly(short="tests/pipelines/cli/test_main.py::test_commands_without_training_work_without_torchrec")
def test_bundle_scores_without_torchrec(
    written: Path, hand_ranker: FrozenRanker, draw_rows: DrawRows, tmp_path: Path
) -> None:
    rows = draw_rows(50, 13)
    scores = run_without({"torchrec", "fbgemm_gpu", "pipelines", "service"}, SCORE, written, rows, tmp_path)
    expected = hand_ranker.score(rows)
    assert scores.column_names == expected.column_names
    for a, b in zip(scores.columns, expected.columns, strict=True):
        np.testing.assert_allclose(a.to_numpy(), b.to_numpy(), rtol=0.0, atol=1e-6)


FINISH = """
import numpy as np

from ranking.artifacts.bundle import read_bundle

ranker, rows = read_bundle(folder), pq.read_table(rows)
items = ranker.encoded["item"]
assert (items.take(items.rows([7, 0])).ids > 0).all()
inputs, tasks = ranker.encoder.encode(ranker.complete(rows)), ranker.schema.task_names
assert ranker.explain(inputs, tasks) == ranker.selection.tasks
outputs = np.stack([column.to_numpy() for column in rows["outputs"].combine_chunks().flatten()], 1)
pq.write_table(ranker.to_table(ranker.finished(outputs, tasks), ranker.schema.tasks), out)
"""
"""Scoring from the outputs of the graph, which are part of the rows."""


def test_bundle_is_read_without_pytorch(
    make_model: Callable[[], MMoE], hand_ranker: FrozenRanker, golden: pa.Table, draw_rows: DrawRows, tmp_path: Path
) -> None:
    ranker = freeze(make_model(), hand_ranker.encoder, hand_ranker.tables, {}, calibration=CALIBRATION)
    bundle.write_bundle(ranker, golden, tmp_path / "bundle")
    rows = draw_rows(50, 13)
    outputs = ranker.outputs(ranker.encoder.encode(ranker.complete(rows)), ranker.schema.task_names)
    struct = pa.StructArray.from_arrays(list(outputs.T), names=ranker.schema.task_names)
    rows_and_outputs = rows.append_column("outputs", struct)
    without = {"torch", "torchrec", "fbgemm_gpu", "pipelines", "service"}
    assert run_without(without, FINISH, tmp_path / "bundle", rows_and_outputs, tmp_path).equals(ranker.score(rows))


LOAD_ERROR = """
import pyarrow as pa

try:
    ranking.load(folder)
except ranking.BundleError as error:
    pq.write_table(pa.table({"message": [str(error)]}), out)
"""


def test_load_per_example_gate_without_pytorch_is_rejected(
    make_mmoe: Callable[[GateConfig], MMoE], hand_ranker: FrozenRanker, golden: pa.Table, tmp_path: Path
) -> None:
    gate = SoftmaxConfig(kind="softmax", per_example=True)
    tasks = {task: dict.fromkeys(range(5), 0.2) for task in hand_ranker.schema.task_names}
    ranker = freeze(make_mmoe(gate), hand_ranker.encoder, {}, {}, routed=(gate, Selection(5, 5, tasks, True)))
    folder = tmp_path / "bundle"
    bundle.write_bundle(ranker, golden, folder)
    result = run_without({"torch"}, LOAD_ERROR, folder, golden, tmp_path)
    assert result["message"].to_pylist() == [
        f"{folder} has a per-example gate, which needs PyTorch: install it, or load another bundle"
    ]
