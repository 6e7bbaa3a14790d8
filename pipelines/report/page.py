"""Puts the report's sections on one page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipelines.report import choice, data, learning, numbers, origin, quality
from pipelines.report.facts import Facts, read_facts
from pipelines.report.summary import summary
from pipelines.run_folder import RunFolder
from ranking.errors import OutputError
from ranking.files import reason, require_writable

SECTIONS = (
    data.data,
    learning.curves,
    learning.trajectories,
    choice.selection,
    choice.cost,
    quality.metrics,
    quality.calibrations,
    quality.slices,
    choice.measures,
    origin.origin,
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
    facts = read_facts(path)
    require_writable(file)
    page = render(facts)
    draft = file.with_name(f".{file.name}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OutputError(f"{file}: cannot be written ({reason(error)})") from None
    return file


def render(facts: Facts) -> str:
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
    for form in (numbers.number, numbers.count, numbers.percent, numbers.short, numbers.rate):
        made.filters[form.__name__] = form
    return made
