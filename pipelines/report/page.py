"""Render the sections of the report as one HTML page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipelines.report import (
    baselines_section,
    data_section,
    experts_section,
    formatting,
    importance_section,
    quality_section,
    reproduce_section,
    training_section,
)
from pipelines.report.run_data import RunData, read_run_data
from pipelines.report.summary import summarize
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import check_writable, write_errors

SECTIONS = (
    data_section.data,
    training_section.learning_curves,
    training_section.gate_weights,
    experts_section.selected_experts,
    experts_section.cost,
    quality_section.metrics,
    baselines_section.baselines,
    quality_section.calibration_curves,
    quality_section.slices,
    importance_section.importance,
    experts_section.gate_metrics,
    reproduce_section.reproduce,
)
"""Builders of the sections, in the order of the page."""


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write the report of a run; the same run always gives the same bytes.

    Args:
        path: the run folder.
        out: the HTML file, which is replaced if it exists; default: ``report.html`` in the run folder.

    Returns:
        The HTML file.

    Raises:
        LogError: the run folder does not exist, or one of its files is damaged.
        OutputError: the HTML file cannot be written.
    """
    file = out or RunFolder(path).report
    run_data = read_run_data(path)
    check_writable(file)
    page = render(run_data)
    draft = file.with_name(f".{file.name}.draft")
    with write_errors(file):
        try:
            draft.write_text(page, encoding="utf-8")
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    return file


def render(run_data: RunData) -> str:
    """Return the HTML of the report."""
    sections = [build(run_data) for build in SECTIONS]
    template = template_environment().get_template("page.html.jinja")
    return template.render(name=run_data.config.name, summary=summarize(run_data), sections=sections)


def template_environment() -> Environment:
    """Create the Jinja environment of the report, with the number formats as filters."""
    environment = Environment(
        loader=PackageLoader("pipelines.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for number_format in (
        formatting.number,
        formatting.count,
        formatting.percent,
        formatting.short,
        formatting.rate,
    ):
        environment.filters[number_format.__name__] = number_format
    return environment
