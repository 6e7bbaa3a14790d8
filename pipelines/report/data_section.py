"""The data card: what the log held, and what was left out."""

from __future__ import annotations

from pipelines.report.formatting import moment
from pipelines.report.run_data import RunData
from pipelines.report.section import Section

NULLS_SHOWN = 30


def data(facts: RunData) -> Section:
    """Rows by split, rows left out, null rates, labels."""
    survey = facts.survey
    if survey is None:
        lack = (
            "This run has no survey.json: an older version trained it. "
            f"'ranker check {facts.path / 'config.toml'}' prints the same."
        )
        return Section("data", "Data", lack=lack)
    nulls = sorted(((name, share) for name, share in survey["null_rate"].items() if share), key=lambda pair: -pair[1])
    logs = facts.config.logs
    return Section(
        "data",
        "Data",
        "What the log held when this run read it. Time splits the rows: the past trains, the latest days test.",
        {
            "rows": survey["rows"],
            "total": sum(survey["rows"].values()),
            "bounds": {
                "train": f"before {moment(logs.validation_from)}",
                "validation": f"from {moment(logs.validation_from)}",
                "test": f"from {moment(logs.test_from)}",
            },
            "duplicates": survey["duplicates"],
            "bad": sorted(survey["bad"].items(), key=lambda pair: (-pair[1], pair[0])),
            "nulls": nulls[:NULLS_SHOWN],
            "more_nulls": len(nulls) - len(nulls[:NULLS_SHOWN]),
            "tasks": facts.config.tasks,
            "labels": survey["labels"],
        },
    )
