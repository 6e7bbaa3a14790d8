"""From a path on the command line to what is measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipelines.evaluation.sources import Source, bundle_source
from pipelines.run_folder import RunFolder
from ranking import bundle


def open_sources(path: Path) -> Iterable[Source]:
    """The model of a run or bundle; of a run of single tasks the model of each.

    Raises:
        LogError: it is neither, or a damaged run.
        BundleError: a damaged bundle.
    """
    if (path / "manifest.json").exists():
        return [bundle_source(bundle.load(path), str(path))]
    run = RunFolder.open(path)
    from pipelines.evaluation.runs import run_sources  # needs TorchRec, which bundles do without

    return run_sources(run)
