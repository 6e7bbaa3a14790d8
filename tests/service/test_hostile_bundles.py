"""Bundles come from elsewhere: nothing of them is executed, and nothing outside of them is read."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from pipelines.jobs.publish import publish
from ranking import BundleError
from ranking.artifacts import checksums
from ranking.artifacts.atomic_files import sha256
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics

SOURCES = sorted(path for room in ("ranking", "service") for path in (Path(__file__).parents[2] / room).rglob("*.py"))


@pytest.fixture
def published(bundle: Path, tmp_path: Path) -> Path:
    """The folder of a published version, to be tampered with."""
    name, version = publish(bundle, tmp_path / "repository")
    return tmp_path / "repository" / name / str(version)


def served(repository: Path) -> ModelRegistry:
    """What a service serves of a repository."""
    models = ModelRegistry(None)
    Reconciler(Settings(repository=repository), models, Metrics()).load_initial()
    return models


def refusal(published: Path) -> str:
    with pytest.raises(BundleError) as caught:
        served(published.parents[1])
    return str(caught.value)


def sum_again(folder: Path) -> None:
    """As an attacker would."""
    checksums.write_checksums(folder)


class TestTheSource:
    """Of library and service: nothing that could run what a bundle or a request holds."""

    MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "subprocess"} | {
        *("importlib", "runpy", "code", "ctypes", "cffi", "yaml", "zipfile", "tarfile", "xml")
    }
    CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.jit.load"} | {
        *("torch.hub.load", "torch.package.PackageImporter", "torch.classes.load_library", "torch.ops.load_library")
    }

    @staticmethod
    def imported(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).partition(".")[0]

    @staticmethod
    def called(tree: ast.AST) -> Iterator[str]:
        yield from (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))

    @pytest.mark.parametrize("source", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
    def test_neither_imports_nor_calls_what_executes(self, source: Path) -> None:
        tree = ast.parse(source.read_text())
        assert not self.MODULES & set(self.imported(tree))
        assert not self.CALLS & set(self.called(tree))
        assert "allow_pickle=True" not in ast.unparse(tree)

    def test_would_be_noticed(self) -> None:
        tree = ast.parse("import os, pickle\nfrom torch import load\ntorch.load(x)\neval(y)")
        assert {"pickle"} == self.MODULES & set(self.imported(tree))
        assert {"torch.load", "eval"} == self.CALLS & set(self.called(tree))


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.forward_with_routing = trace

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.forward_with_routing),)


def pickled(file: Path, payload: Payload) -> None:
    file.write_bytes(pickle.dumps(payload))


def in_torchs_format(file: Path, payload: Payload) -> None:
    torch.save(payload, file)


def in_an_array(file: Path, payload: Payload) -> None:
    with file.open("wb") as stream:  # by name, numpy would add a suffix
        np.save(stream, np.array([payload], object), allow_pickle=True)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "manifest.json", "items/rows.npy", "users.parquet", "body.onnx"]
)
@pytest.mark.parametrize("written", [pickled, in_torchs_format, in_an_array])
def test_a_pickle_in_the_place_of_any_file_is_refused_and_not_opened(
    published: Path, tmp_path: Path, name: str, written: Callable[[Path, Payload], None]
) -> None:
    written(published / name, Payload(tmp_path / "executed"))
    sum_again(published)
    assert refusal(published)
    assert not (tmp_path / "executed").exists()


def test_a_body_may_not_read_other_files(published: Path) -> None:
    body = onnx.load(published / "body.onnx")
    weight = body.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../../secret")
    (published / "body.onnx").write_bytes(body.SerializeToString())
    sum_again(published)
    assert "weights in other files" in refusal(published)


def test_a_body_may_not_bring_operators_of_its_own(published: Path) -> None:
    body = onnx.load(published / "body.onnx")
    body.graph.node.append(helper.make_node("Shell", ["items"], ["out"], domain="com.attacker"))
    (published / "body.onnx").write_bytes(body.SerializeToString())
    sum_again(published)
    assert "Shell, which is not allowed in a bundle" in refusal(published)


class TestPathsThatLeadOut:
    @pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "encoder/../../secret", "./manifest.json"])
    def test_of_the_sums_are_refused(self, published: Path, name: str) -> None:
        (published.parent / "secret").write_text("secret")
        with (published / checksums.CHECKSUM_FILE).open("a") as sums:
            sums.write(f"{sha256(published.parent / 'secret')}  {name}\n")
        assert f"{name} is missing" in refusal(published)

    @pytest.mark.parametrize("link", [os.symlink, os.link])
    def test_of_files_are_refused_if_they_are_links(
        self, published: Path, tmp_path: Path, link: Callable[[Path, Path], None]
    ) -> None:
        outside = tmp_path / "weights"
        (published / "weights.safetensors").rename(outside)
        link(outside, published / "weights.safetensors")
        if link is os.link:  # cannot be told from a file, and needs no path
            served(published.parents[1])
        else:
            assert "weights.safetensors is a link" in refusal(published)

    def test_of_folders_are_refused_too(self, published: Path, tmp_path: Path) -> None:
        (published / "encoder").rename(tmp_path / "encoder")
        (published / "encoder").symlink_to(tmp_path / "encoder")
        assert "encoder is a link" in refusal(published)

    def test_a_pipe_is_refused_and_not_waited_for(self, published: Path) -> None:
        (published / "weights.safetensors").unlink()
        os.mkfifo(published / "weights.safetensors")
        assert "weights.safetensors is a link, a pipe" in refusal(published)

    @pytest.mark.parametrize("level", ["version", "model"])
    def test_of_versions_and_models_are_refused(self, published: Path, tmp_path: Path, level: str) -> None:
        moved = published if level == "version" else published.parent
        shutil.move(moved, tmp_path / "elsewhere")
        moved.symlink_to(tmp_path / "elsewhere")
        assert "leads out of the repository" in refusal(published)

    def test_links_within_the_repository_are_followed_and_so_is_one_to_all_of_it(
        self, published: Path, tmp_path: Path
    ) -> None:
        published.rename(published.parent / "of-yesterday")
        published.symlink_to("of-yesterday")
        (tmp_path / "link").symlink_to(published.parents[1])
        assert [lineup.current.version for lineup in served(tmp_path / "link")] == ["1"]
