"""Publication of the served model with the counters of a newer log, for days whose model is not published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.console import print_status
from pipelines.jobs.publish import publish
from pipelines.runs.run import RunFolder
from ranking.artifacts import bundle
from ranking.counters.state import StateClock
from ranking.schema import Schema


def refresh_counters(
    served: Path, run: RunFolder, out: Path, repo: Path, *, allow_poorer_counters: bool = False
) -> int | None:
    """Publish the served bundle with the state of a run's counters and histories in place of its own.

    Args:
        served: the served bundle.
        run: run on the newer log.
        out: folder for the new bundle; used as it is if it exists.
        repo: the repository.
        allow_poorer_counters: see ``publish``.

    Returns:
        The new version; None if the model has neither counters nor histories, if the run defines others, or if those of
        the served bundle end later, such as for a day in the past.

    Raises:
        BundleError: the served bundle is damaged.
        OutputError: ``out`` or the repository cannot be written.
    """
    schema = bundle.read_bundle(served).schema
    if not schema.counter_features:
        return None
    if _definition(schema) != _definition(run.load_config().serving_schema):
        print_status("the counters of the served version are not continued: the configuration defines others")
        return None
    with bundle.as_bundle_error(served):
        old, new = (StateClock.read(folder) for folder in (served / bundle.COUNTERS, run.counters))
    if new.until < old.until:
        print_status(
            f"the counters of the served version are kept: they count until {old.text}, those of {run.path} only until "
            f"{new.text}; a later --day continues them"
        )
        return None
    if not out.exists():
        bundle.replace_state(served, run.counters, out)
    _, version = publish(out, repo, allow_poorer_counters=allow_poorer_counters)
    return version


def _definition(schema: Schema) -> tuple[Any, ...]:
    """Return what the sums of counters and histories depend on, besides the log."""
    tasks = {task.name: (task.label, task.mask) for task in schema.tasks}
    inputs = {feature.name: (feature.kind, feature.column, feature.owner) for feature in schema.logged.inputs}
    return schema.counters, schema.histories, schema.columns, tasks, inputs
