"""Section on the training data: rows by split, dropped rows, null rates and labels."""

from __future__ import annotations

from pipelines.report.formatting import timestamp
from pipelines.report.run_data import RunData
from pipelines.report.section import Section

MAX_NULL_FEATURES = 30
"""Maximum number of features in the table of null rates."""


def data(run_data: RunData) -> Section:
    """Build the section from ``survey.json``."""
    survey = run_data.survey
    if survey is None:
        omitted = (
            "There is no survey.json because an older version trained this run. "
            f"'ranker check {run_data.path / 'config.toml'}' prints the same figures."
        )
        return Section("data", "Data", omitted=omitted)
    nulls = sorted(((name, share) for name, share in survey["null_rate"].items() if share), key=lambda pair: -pair[1])
    logs = run_data.config.logs
    return Section(
        "data",
        "Data",
        "Content of the log when this run read it. The splits are by time: the earliest rows train, the latest test.",
        {
            "rows": survey["rows"],
            "total": sum(survey["rows"].values()),
            "bounds": {
                "train": f"before {timestamp(logs.validation_from)}",
                "validation": f"from {timestamp(logs.validation_from)}",
                "test": f"from {timestamp(logs.test_from)}"
                + (f", before {timestamp(logs.test_until)}" if logs.test_until else ""),
            },
            "duplicates": survey["duplicates"],
            "replaced": survey.get("replaced", 0),  # surveys of earlier versions have no such key
            "bad": sorted(survey["bad"].items(), key=lambda pair: (-pair[1], pair[0])),
            "nulls": nulls[:MAX_NULL_FEATURES],
            "more_nulls": len(nulls) - len(nulls[:MAX_NULL_FEATURES]),
            "tasks": run_data.config.tasks,
            "labels": survey["labels"],
        },
    )
