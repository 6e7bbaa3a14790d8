"""From a path on the command line to what is measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipelines.evaluation.sources import Scorer, bundle_scorer
from pipelines.runs.run import RunFolder
from ranking.artifacts import bundle


def resolve_scorers(path: Path) -> Iterable[Scorer]:
    """The model of a run or bundle; of a run of single tasks the model of each.

    Raises:
        LogError: it is neither, or a damaged run.
        BundleError: a damaged bundle.
    """
    if (path / "manifest.json").exists():
        return [bundle_scorer(bundle.load(path), str(path))]
    run = RunFolder.open(path)
    from pipelines.evaluation.run_sources import run_scorers  # needs TorchRec, which bundles do without

    return run_scorers(run)
