"""Text of a configuration in which a comment next to each setting gives the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.config.toml import inline_toml
from pipelines.init.guesses import ColumnGuess, LeftOut
from pipelines.init.plan import Plan
from pipelines.init.sizes import WANTED_STEPS
from ranking.schema import Owner

MAX_COMMENT = 200
"""Maximum length of a comment."""
COMMENT_COLUMN = 34
"""Column at which comments start after short settings."""


@dataclass(frozen=True)
class Locations:
    """Names of the log and the side tables in the configuration.

    Attributes:
        log: the log, or its copy.
        tables: tables of users and items, or their copies.
        command: the command that writes the configuration, for the header.
    """

    log: str
    tables: Mapping[Owner, str]
    command: str


def to_toml(plan: Plan, name: str, locations: Locations) -> str:
    """Return the text of a ranker.toml.

    Args:
        plan: the configuration.
        name: name of the model.
        locations: names of the tables.
    """
    sections = [
        _header(plan, locations),
        [_setting("name", name)],
        _columns(plan),
        _logs(plan, locations),
        *_features(plan),
        *_tasks(plan),
        _left_out(plan),
        *_sizes(plan),
        _serving(plan),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def doubts(plan: Plan) -> list[str]:
    """Return the guesses that are least certain, the most important first."""
    roles = plan.roles
    found = [f"[[tasks]] '{task.column}': {task.unsure}" for task in roles.tasks if task.unsure]
    guesses = {"time": roles.time, "user": roles.user, "item": roles.item, "request": roles.request}
    guesses["weight"] = roles.weight
    for role, guess in guesses.items():
        if guess is not None and guess.unsure:
            found.append(f"[columns] {role} = '{guess.column}': {guess.unsure}")
    for owner, share in plan.matches.items():
        if share < 0.5:
            found.append(f"[logs] {owner}s: only {share:.0%} of the rows have an id that is in this table")
    found += [f"[[features]] '{feature.column}': {feature.unsure}" for feature in roles.all_features if feature.unsure]
    unjudged = [f"'{feature.column}'" for feature in roles.all_features if not feature.owner.sure]
    if unjudged:
        found.append(f"owner of {', '.join(unjudged)}: too few repeated ids to tell")
    return found


def leaks(plan: Plan) -> list[LeftOut]:
    """Return the columns that are left out because they seem to be known only after the impression."""
    columns = [*plan.roles.left_out, *(column for side in plan.roles.sides for column in side.left_out)]
    return [column for column in columns if column.leak]


def _header(plan: Plan, locations: Locations) -> list[str]:
    sample = plan.source.sample
    rows = f"all {sample.total:,} rows" if sample.complete else f"{sample.rows.num_rows:,} of {sample.total:,} rows"
    return [
        f"# First configuration, written by: {_clean(locations.command)}",
        f"# Guesses are based on {rows} of the log. The comments give the reasons; correct what is wrong.",
        "# Settings: docs/configuration.md. Next: ranker check",
    ]


def _columns(plan: Plan) -> list[str]:
    roles = plan.roles
    lines = ["[columns]"]
    guesses = {"time": roles.time, "user": roles.user, "item": roles.item, "request": roles.request}
    guesses["weight"] = roles.weight
    return lines + [
        _setting(role, guess.column, _reason(guess)) for role, guess in guesses.items() if guess is not None
    ]


def _logs(plan: Plan, locations: Locations) -> list[str]:
    splits, sample = plan.splits, plan.source.sample
    copy = None
    if plan.copied:
        why = "the log is CSV, and training reads Parquet" if plan.source.is_csv else "some columns are converted"
        copy = f"a copy of {_clean(plan.source.location)}: {why}"
    lines = ["[logs]", _setting("path", locations.log, copy)]
    for side in plan.roles.sides:
        share = plan.matches[side.owner]
        comment = f"has the ids of {share:.1%} of the rows"
        if side.copied:
            comment += f"; a copy of {_clean(side.source.location)}"
        lines.append(_setting(f"{side.owner}s", locations.tables[side.owner], comment))
    shares = [f"{share:.1%}" for share in splits.shares]
    where = "of the rows" if sample.complete else "of the sample"
    bounds = {"validation_from": splits.validation_from, "test_from": splits.test_from}
    comments = [f"earlier rows train: {shares[0]} {where}", f"{shares[1]} validate, {shares[2]} test"]
    for (key, bound), comment in zip(bounds.items(), comments, strict=True):
        lines.append(_setting(key, bound.date() if splits.whole_days else bound, comment))
    if splits.gaps:
        lines.append(_setting("allow_missing_days", True, "some days have no rows in the sample"))
    if plan.max_bad_rows is not None:
        reasons = "; ".join(f"{share:.1%} of the rows: {reason}" for reason, share in plan.bad_rows.items())
        lines.append(_setting("max_bad_rows", plan.max_bad_rows, reasons))
    return lines


def _features(plan: Plan) -> Iterable[list[str]]:
    for feature, entry in zip(plan.roles.all_features, plan.roles.to_schema()["features"], strict=True):
        comments = {
            "kind": _joined(feature.reason, feature.unsure, plan.source.notes.get(feature.column)),
            "owner": feature.owner.reason + ("" if feature.owner.sure else " (unsure)"),
        }
        lines = ["[[features]]", *(_setting(key, value, comments.get(key)) for key, value in entry.items())]
        yield lines


def _tasks(plan: Plan) -> Iterable[list[str]]:
    for task, entry in zip(plan.roles.tasks, plan.roles.to_schema()["tasks"], strict=True):
        comments = {
            "kind": _joined(task.reason, task.unsure, plan.source.notes.get(task.column)),
            "min": "smallest and largest label of the sample: the distribution has rare extremes",
        }
        yield ["[[tasks]]", *(_setting(key, value, comments.get(key)) for key, value in entry.items())]


def _left_out(plan: Plan) -> list[str]:
    tables = [("the log", plan.roles.left_out)]
    tables += [(f"the {side.owner}s table", side.left_out) for side in plan.roles.sides]
    lines = []
    for where, columns in tables:
        if columns:
            lines.append(f"# Columns of {where} that are left out:")
            for column in columns:
                name, reason = _clean(column.column) or "(empty name)", _clean(column.reason)
                lines.append(f"#   {name}: {'leakage: ' if column.leak else ''}{reason}")
    return lines


def _sizes(plan: Plan) -> Iterable[list[str]]:
    sizes = plan.sizes
    if sizes.small:
        yield [
            "[model]",
            _setting("experts", 4, "a small log; the default is 8"),
            _setting("expert_layers", [64]),
            _setting("tower_layers", [32]),
        ]
    positions = [entry["name"] for entry in plan.roles.to_schema()["features"] if entry.get("training_only")]
    if positions:
        yield [
            "[model.side_tower]",
            _setting("features", positions, "position bias: read in training only"),
        ]
    note = "" if sizes.steps >= WANTED_STEPS else f", fewer than {WANTED_STEPS}: the gates may not converge"
    yield [
        "[training]",
        _setting("batch_size", sizes.batch_size, f"{sizes.steps:,} steps in all{note}"),
        _setting("epochs", sizes.epochs, "on most logs ids overfit in the second pass" if sizes.epochs == 1 else None),
    ]


def _serving(plan: Plan) -> list[str]:
    names = [entry["name"] for entry in plan.roles.to_schema()["tasks"]]
    binary = {
        n: -1.0 if t.negative else 1.0 for n, t in zip(names, plan.roles.tasks, strict=True) if t.kind == "binary"
    }
    objective = binary or {names[0]: 1.0}
    reason = "weights of the scores that sort the items: choose your own"
    if any(weight < 0 for weight in objective.values()):
        reason += "; negative for what items should not cause"
    return ["[serving]", f"# {reason}", f"objective = {inline_toml(objective)}"]


def _reason(guess: ColumnGuess) -> str:
    return _joined(guess.reason, guess.unsure)


def _joined(reason: str, unsure: str | None, note: str | None = None) -> str:
    parts = [reason, *([note] if note else []), *([f"unsure: {unsure}"] if unsure else [])]
    return "; ".join(parts)


def _setting(key: str, value: Any, comment: str | None = None) -> str:
    text = f"{key} = {inline_toml(value)}"
    return f"{text:<{COMMENT_COLUMN}} # {_clean(comment)}" if comment else text


def _clean(text: str) -> str:
    """Return text that can stand in a comment: without control characters, and of limited length."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+", " ", text)
    return text if len(text) <= MAX_COMMENT else f"{text[:MAX_COMMENT]}…"
