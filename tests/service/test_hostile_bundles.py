"""Hostile bundles: none of their content is executed, and no file outside of them is read."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import ranking
from pipelines.jobs.publish import publish
from ranking import BundleError
from ranking.artifacts import checksums
from ranking.artifacts.atomic_files import sha256
from service.backends.select import select_backend
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics

VERSION_0_1 = Path(__file__).parents[1] / "fixtures" / "version_0_1" / "bundle"
SOURCES = sorted(
    path for package in ("ranking", "service") for path in (Path(__file__).parents[2] / package).rglob("*.py")
)


@pytest.fixture
def published(bundle: Path, tmp_path: Path) -> Path:
    """Folder of a published version to manipulate."""
    name, version = publish(bundle, tmp_path / "repository")
    return tmp_path / "repository" / name / str(version)


def load_repository(repository: Path) -> ModelRegistry:
    """Load the models of a repository as a service does."""
    models = ModelRegistry(None)
    Reconciler(Settings(repository=repository), models, Metrics()).load_initial()
    return models


def rejection_reason(published: Path) -> str:
    with pytest.raises(BundleError) as caught:
        load_repository(published.parents[1])
    return str(caught.value)


def update_checksums(folder: Path) -> None:
    """Make the checksums match, as an attacker would."""
    checksums.write_checksums(folder)


EXECUTING_MODULES = {
    *("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "subprocess"),
    *("importlib", "runpy", "code", "ctypes", "cffi", "yaml", "zipfile", "tarfile", "xml"),
}
DATA_MODULES = {"importlib.metadata", "importlib.resources"}
"""Submodules that only read data of installed packages."""
ALLOWED = {("free_memory.py", "ctypes")}
"""(file, module) of the call of malloc_trim."""
EXECUTING_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.jit.load"),
    *("torch.hub.load", "torch.package.PackageImporter", "torch.classes.load_library", "torch.ops.load_library"),
}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module not in DATA_MODULES:
            yield str(node.module).partition(".")[0]


def called_functions(tree: ast.AST) -> Iterator[str]:
    yield from (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_source_neither_imports_nor_calls_anything_that_executes_data() -> None:
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        executing = EXECUTING_MODULES & set(imported_modules(tree))
        assert executing <= {module for file, module in ALLOWED if file == source.name}, source
        assert not EXECUTING_CALLS & set(called_functions(tree)), source
        assert "allow_pickle=True" not in ast.unparse(tree), source


def test_source_check_detects_imports_and_calls() -> None:
    tree = ast.parse(
        "import os, pickle\nfrom torch import load\nfrom importlib import metadata\ntorch.load(x)\neval(y)"
    )
    assert {"importlib", "pickle"} == EXECUTING_MODULES & set(imported_modules(tree))
    assert {"torch.load", "eval"} == EXECUTING_CALLS & set(called_functions(tree))


class Payload:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def write_pickle(file: Path, payload: Payload) -> None:
    file.write_bytes(pickle.dumps(payload))


def write_torch_file(file: Path, payload: Payload) -> None:
    torch.save(payload, file)


def write_object_array(file: Path, payload: Payload) -> None:
    with file.open("wb") as stream:  # given a path, NumPy would add a suffix
        np.save(stream, np.array([payload], object), allow_pickle=True)


@pytest.mark.parametrize("name", ["weights.safetensors", "manifest.json", "items/rows.npy", "users.parquet"])
@pytest.mark.parametrize("write", [write_pickle, write_torch_file, write_object_array])
def test_pickle_in_place_of_a_file_is_rejected_and_not_executed(
    published: Path, tmp_path: Path, name: str, write: Callable[[Path, Payload], None]
) -> None:
    write(published / name, Payload(tmp_path / "executed"))
    update_checksums(published)
    assert rejection_reason(published)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("damage", [lambda f: f.write_bytes(b"not a graph"), Path.unlink], ids=["damaged", "absent"])
def test_graph_for_other_runtimes_is_not_loaded(published: Path, damage: Callable[[Path], object]) -> None:
    damage(published / "body.onnx")
    update_checksums(published)
    assert select_backend(ranking.load(published)).name == "onnxruntime"


def alter_array(file: Path, alter: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]) -> None:
    np.save(file, alter(np.load(file)))


def claim_rows(file: Path, rows: int) -> None:
    """Replace the number of rows in the header of an array."""
    header = {"descr": np.lib.format.dtype_to_descr(np.load(file).dtype), "fortran_order": False, "shape": (rows,)}
    with file.open("r+b") as stream:
        np.lib.format.write_array_header_1_0(stream, header)


LYING_INDEXES: dict[str, tuple[Callable[[Path], object], str]] = {
    "checks of fewer ids": (lambda f: alter_array(f / "checks.npy", lambda a: a[:-1]), "checks.npy is of"),
    "checks of more ids": (lambda f: alter_array(f / "checks.npy", lambda a: np.append(a, a)), "checks.npy is of"),
    "no checks": (lambda f: alter_array(f / "checks.npy", lambda a: a[:0]), "checks.npy is of 0 ids"),
    "header with too many rows": (lambda f: claim_rows(f / "checks.npy", 2**40), "checks.npy holds fewer than"),
    "header with negative rows": (lambda f: claim_rows(f / "checks.npy", -1), "checks.npy holds uint64 [-1], not"),
    "truncated checks": (lambda f: os.truncate(f / "checks.npy", 130), "checks.npy holds fewer than"),
    "empty file of checks": (lambda f: os.truncate(f / "checks.npy", 0), "inconsistent files"),
    "no keys": (lambda f: alter_array(f / "keys.npy", lambda a: a[:0]), "keys.npy does not end with the key"),
    "keys without the last": (lambda f: alter_array(f / "keys.npy", lambda a: a[:-1]), "keys.npy does not end"),
    "more keys": (lambda f: alter_array(f / "keys.npy", lambda a: np.append(a, a)), "starts.npy holds"),
    "starts beyond the keys": (lambda f: alter_array(f / "starts.npy", lambda a: a + 1000), "which is not a position"),
    "fewer starts": (lambda f: alter_array(f / "starts.npy", lambda a: a[:-1]), "starts.npy holds"),
    "fewer records": (lambda f: alter_array(f / "rows.npy", lambda a: a[:-1]), "rows.npy holds"),
}
"""Changes of an index of text ids that contradict its other files, and a part of the error message."""


@pytest.mark.parametrize("lie", LYING_INDEXES)
def test_index_that_lies_about_its_sizes_is_rejected(published: Path, lie: str) -> None:
    change, message = LYING_INDEXES[lie]
    change(published / "users")
    update_checksums(published)
    reason = rejection_reason(published)
    assert message in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    "alter",
    [lambda ends: ends[:-1], lambda ends: ends[::-1], lambda ends: ends * 1000, lambda ends: ends - 1, lambda _: [0]],
    ids=["fewer", "descending", "beyond the text", "negative", "none"],
)
def test_index_of_format_2_that_lies_about_its_text_is_rejected(tmp_path: Path, alter: Callable[[Any], Any]) -> None:
    name, version = publish(VERSION_0_1, tmp_path / "repository")
    published = tmp_path / "repository" / name / str(version)
    ends = np.load(published / "items" / "ends.npy")
    np.save(published / "items" / "ends.npy", np.asarray(alter(ends), np.int64))
    update_checksums(published)
    assert "ends.npy" in rejection_reason(published)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "encoder/../../secret", "./manifest.json"])
def test_checksum_path_outside_the_bundle_is_rejected(published: Path, name: str) -> None:
    (published.parent / "secret").write_text("secret")
    with (published / checksums.CHECKSUM_FILE).open("a") as sums:
        sums.write(f"{sha256(published.parent / 'secret')}  {name}\n")
    assert "SHA256SUMS is damaged" in rejection_reason(published)


def test_symbolic_link_to_a_file_is_rejected(published: Path, tmp_path: Path) -> None:
    outside = tmp_path / "weights"
    (published / "weights.safetensors").rename(outside)
    (published / "weights.safetensors").symlink_to(outside)
    assert "weights.safetensors is a link" in rejection_reason(published)


def test_hard_link_to_a_file_is_accepted(published: Path, tmp_path: Path) -> None:
    """A hard link cannot be distinguished from a file, and names no path."""
    outside = tmp_path / "weights"
    (published / "weights.safetensors").rename(outside)
    (published / "weights.safetensors").hardlink_to(outside)
    assert load_repository(published.parents[1]).get("feed").current.version == "1"


def test_symbolic_link_to_a_folder_is_rejected(published: Path, tmp_path: Path) -> None:
    (published / "encoder").rename(tmp_path / "encoder")
    (published / "encoder").symlink_to(tmp_path / "encoder")
    assert "encoder is a link" in rejection_reason(published)


def test_named_pipe_is_rejected_without_waiting(published: Path) -> None:
    (published / "weights.safetensors").unlink()
    os.mkfifo(published / "weights.safetensors")
    assert "weights.safetensors is a link, a pipe" in rejection_reason(published)


@pytest.mark.parametrize("level", ["version", "model"])
def test_version_or_model_linked_from_outside_the_repository_is_rejected(
    published: Path, tmp_path: Path, level: str
) -> None:
    moved = published if level == "version" else published.parent
    shutil.move(moved, tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    assert "leads out of the repository" in rejection_reason(published)


def test_links_within_the_repository_are_followed(published: Path, tmp_path: Path) -> None:
    published.rename(published.parent / "of-yesterday")
    published.symlink_to("of-yesterday")
    (tmp_path / "link").symlink_to(published.parents[1])
    assert load_repository(tmp_path / "link").get("feed").current.version == "1"
