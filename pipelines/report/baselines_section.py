"""Section on the baselines: their metrics, and the paired differences of the model from them."""

from __future__ import annotations

from pipelines.evaluation.baselines.format import baseline_tables, describe_baselines, describe_omitted
from pipelines.report.quality_section import NOT_EVALUATED
from pipelines.report.run_data import RunData
from pipelines.report.section import Section


def baselines(run_data: RunData) -> Section:
    """Build the tables of the baselines."""
    title, evaluation = "Baselines", run_data.evaluation
    if evaluation is None:
        return Section("baselines", title, omitted=NOT_EVALUATED)
    entry = evaluation.get("baselines")
    if entry is None:
        omitted = (
            "evaluation.json has no baselines. 'ranker train' of this version writes them; 'ranker evaluate RUN' "
            "prints them for this run."
        )
        return Section("baselines", title, omitted=omitted)
    if "omitted" in entry:
        return Section("baselines", title, omitted=f"There are no baselines: {entry['omitted']}.")
    return Section(
        "baselines",
        title,
        f"Simple models, {describe_baselines(entry)}. Each difference is model − baseline with its 95\u00a0% interval, "
        "under the same draws for both. AUC and RMSE decide whether the model beats a baseline.",
        {"tables": list(baseline_tables(entry)), "notes": describe_omitted(entry)},
    )
