"""Puts the report's sections on one page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipelines.report import (
    data_section,
    experts_section,
    formatting,
    quality_section,
    reproduce_section,
    training_section,
)
from pipelines.report.run_data import RunData, read_run_data
from pipelines.report.summary import summary
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import os_error_text, require_writable
from ranking.errors import OutputError

SECTIONS = (
    data_section.data,
    training_section.curves,
    training_section.trajectories,
    experts_section.selection,
    experts_section.cost,
    quality_section.metrics,
    quality_section.calibrations,
    quality_section.slices,
    experts_section.measures,
    reproduce_section.origin,
)
"""In the order of the page."""


def write_report(path: Path, out: Path | None = None) -> Path:
    """Writes a run's report; the same run gives the same bytes.

    Args:
        path: the run folder.
        out: the HTML file, replaced if it is there; default ``report.html`` in the run folder.

    Returns:
        The file.

    Raises:
        LogError: there is no run folder, or a file in it is damaged.
        OutputError: the file cannot be written.
    """
    file = out or RunFolder(path).report
    facts = read_run_data(path)
    require_writable(file)
    page = render(facts)
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None
    return file


def render(facts: RunData) -> str:
    """The page."""
    return (
        environment()
        .get_template("page.html.jinja")
        .render(facts=facts, summary=summary(facts), sections=[section(facts) for section in SECTIONS])
    )


def environment() -> Environment:
    """The templates, with the forms that numbers take in them."""
    made = Environment(
        loader=PackageLoader("pipelines.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for form in (formatting.number, formatting.count, formatting.percent, formatting.short, formatting.rate):
        made.filters[form.__name__] = form
    return made
