"""Bundles as MLflow models; tests/pipelines/test_engines.py stores and loads one with MLflow."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from ranking.artifacts.mlflow_model import pyfunc_arguments
from ranking.errors import BundleError


def test_arguments_name_the_bundle_and_its_loader(bundle: Path) -> None:
    arguments = pyfunc_arguments(bundle)
    assert arguments["data_path"] == str(bundle)
    assert arguments["pip_requirements"][0].startswith("dselect-ranker[torch]==")
    loader = import_module(arguments["loader_module"])
    assert callable(loader._load_pyfunc(arguments["data_path"]).predict)


def test_damaged_bundle_is_not_stored(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    (tmp_path / "bundle" / "manifest.json").write_text("{}")
    with pytest.raises(BundleError, match=r"manifest\.json"):
        pyfunc_arguments(tmp_path / "bundle")
