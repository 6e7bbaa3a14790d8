"""Commands for bundles: freeze, publish, release, push, pull, daily and score."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.cli.argument_types import canary, day, duration, fraction, location, positive_int, remote_location
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import (
    BUNDLE,
    CONFIG,
    JSON,
    NEW_FOLDER,
    REPOSITORY,
    RUN,
    add_counter_flag,
    add_embeddings,
    add_engine,
    add_loop_folders,
    add_overrides,
    add_store,
    chosen_engine,
    dump_json,
    require_complete,
)
from ranking.artifacts.bundle import EVALUATION
from ranking.artifacts.object_store import FORMS
from ranking.errors import UsageError

if TYPE_CHECKING:
    from pipelines.config.uri import Uris


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    freeze = commands.add("freeze", "write the bundle of a converged run, or of the mean of several", _freeze_command)
    freeze.add_argument(
        "sources",
        type=Path,
        nargs="+",
        metavar="RUN",
        help=f"{RUN}; the bundle of several runs of the same log averages their outputs",
    )
    freeze.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help=NEW_FOLDER)
    add_embeddings(freeze)

    publish = commands.add("publish", "make a bundle the current version in a repository", _publish_command)
    publish.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    publish.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    publish.add_argument("--name", help="name of the model (default: the name in the bundle)")
    publish.add_argument(
        "--keep",
        type=positive_int,
        metavar="N",
        help="remove versions other than the N newest, except served ones (default: keep all)",
    )
    add_counter_flag(publish)

    release = commands.add("release", "show or change which versions of a published model are served", _release_command)
    release.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    release.add_argument("name", metavar="NAME", help="name of the model")
    release.add_argument(
        "--version", type=positive_int, metavar="N", help="make version N the current version (roll back or forward)"
    )
    pinning = release.add_mutually_exclusive_group()
    pinning.add_argument(
        "--pin",
        action="store_true",
        default=None,
        dest="pinned",
        help="newly published versions do not become the current version",
    )
    pinning.add_argument(
        "--unpin",
        action="store_false",
        default=None,
        dest="pinned",
        help="newly published versions become the current version again",
    )
    canaries = release.add_mutually_exclusive_group()
    canaries.add_argument(
        "--canary", type=canary, metavar="N=WEIGHT", help="version N serves this share of the users, from 0 to 1"
    )
    canaries.add_argument("--no-canary", action="store_true", help="the current version serves all users")
    shadows = release.add_mutually_exclusive_group()
    shadows.add_argument(
        "--shadow",
        type=positive_int,
        metavar="N",
        help="version N also scores requests; metrics record the differences",
    )
    shadows.add_argument("--no-shadow", action="store_true", help="stop shadow scoring")
    release.add_argument(
        "--default", action="store_true", help="make the model the one that answers requests that name no model"
    )
    add_store(release)

    push = commands.add(
        "push",
        "upload what is new in a repository, or a run or bundle, to object storage",
        _push_command,
    )
    push.add_argument("folder", type=Path, metavar="FOLDER", help=f"{REPOSITORY}, of a finished run or of a bundle")
    push.add_argument("location", type=remote_location, metavar="LOCATION", help=FORMS)

    pull = commands.add(
        "pull", "copy the released versions of a repository, or a run or bundle, from object storage", _pull_command
    )
    pull.add_argument("location", type=remote_location, metavar="LOCATION", help=FORMS)
    pull.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the copy; created if it does not exist")
    pull.add_argument("--all", action="store_true", help="copy all versions (default: released versions and fallbacks)")
    pull.add_argument(
        "--overwrite",
        action="store_true",
        help="replace releases of the folder, too, that were changed there since the last pull or push",
    )

    daily = commands.add(
        "daily", "train on a new day, and publish the model unless it is worse than the served one", _daily_command
    )
    daily.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    daily.add_argument("--repository", type=Path, required=True, metavar="REPOSITORY", help=REPOSITORY)
    daily.add_argument("--runs", type=Path, required=True, metavar="DIR", help="folder with one run per day")
    daily.add_argument(
        "--day",
        type=day,
        metavar="DATE",
        help="day on which the model is tested; later rows are not read (default: yesterday, UTC)",
    )
    daily.add_argument(
        "--last-day",
        type=day,
        metavar="DATE",
        help="run the jobs of all days from --day to this one, in order (default: one day)",
    )
    daily.add_argument(
        "--margin",
        type=fraction,
        default=0.01,
        metavar="SHARE",
        help="reject a model whose AUC, log loss or RMSE of a task is worse by more than this share (default: 0.01)",
    )
    daily.add_argument(
        "--publish-without-power",
        action="store_true",
        help="publish even if the day has too few labels to tell whether the model is worse (default: do not)",
    )
    add_loop_folders(daily, required=False)
    daily.add_argument(
        "--window",
        type=duration,
        metavar="DURATION",
        help="with --served and --feedback: first join the requests whose window has closed; see 'ranker join'",
    )
    add_counter_flag(daily)
    daily.add_argument("--fresh", action="store_true", help="train from scratch, such as after a change of features")
    add_embeddings(daily)
    add_engine(daily, "read the files of the log before the training, and score those of the day for the comparison,")
    add_overrides(daily)
    daily.add_argument("--json", action="store_true", help=JSON)

    score = commands.add("score", "score a log with a bundle", _score_command)
    score.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    score.add_argument(
        "--logs", type=location, required=True, help="Parquet file or folder, a path or URI; labels are not needed"
    )
    score.add_argument(
        "--out",
        type=Path,
        required=True,
        help="Parquet file, replaced when all rows are scored; with --workers or --engine a new folder of such files",
    )
    score.add_argument("--tasks", nargs="+", metavar="TASK", help="tasks to score (default: all)")
    score.add_argument(
        "--allow-missing",
        action="store_true",
        help="score although more than half of the feature columns have no value in any row",
    )
    add_engine(score)


def _freeze_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.freeze import freeze_run

    first, *others = arguments.sources
    freeze_run(first, arguments.out, arguments.embeddings, others)
    evaluation = arguments.out / EVALUATION
    if others and evaluation.exists():
        from pipelines.evaluation.format import format_evaluation

        print(format_evaluation(json.loads(evaluation.read_text())))
    print(arguments.out)


def _publish_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.publish import publish

    name, version = publish(
        arguments.bundle,
        arguments.repository,
        arguments.name,
        arguments.keep,
        allow_poorer_counters=arguments.allow_poorer_counters,
    )
    print(arguments.repository / name / str(version))


def _release_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.release import change_release
    from pipelines.jobs.rollback import current_version, describe_counters

    options = {name: getattr(arguments, name) for name in ("version", "pinned", "canary", "shadow")}
    changes = {name: value for name, value in options.items() if value is not None}
    for name in ("canary", "shadow"):
        if getattr(arguments, f"no_{name}"):
            changes[name] = None
    where = arguments.repository, arguments.name
    previous = current_version(*where) if "version" in changes else None
    release = change_release(*where, changes, make_default=arguments.default)
    print(dump_json(release.to_json()))
    if previous not in (None, release.version):
        describe_counters(*where, previous, release.version, arguments.to, arguments.prefix)


def _push_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.copy_to_storage import push

    print(dump_json(push(arguments.folder, arguments.location)))


def _pull_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.copy_to_storage import pull

    options = {"every_version": arguments.all, "overwrite": arguments.overwrite}
    print(dump_json(pull(arguments.location, arguments.folder, **options)))


def _daily_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config
    from pipelines.jobs.daily import daily, run_days

    config = load_config(arguments.config, arguments.overrides)
    first = arguments.day or datetime.now(UTC).date() - timedelta(days=1)
    last = arguments.last_day or first
    if last < first:
        raise UsageError(f"--last-day {last} is before the first day, {first}")
    left_out = join_before(arguments, config.name, config.logs.path)
    names = ("margin", "publish_without_power", "allow_poorer_counters", "fresh", "embeddings")
    options = {name: getattr(arguments, name) for name in names}
    where, engine = (arguments.runs, arguments.repository), chosen_engine(arguments)

    def run_day(day: date) -> dict[str, Any]:
        return daily(config, *where, day, **options, command=arguments.argv, engine=engine)

    for record in run_days(first, last, run_day):
        version = arguments.repository / record["model"] / str(record["version"])
        print(dump_json(record) if arguments.json else version, flush=True)
    require_complete(left_out)


def _score_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.score import score_log, score_parts
    from ranking.artifacts import bundle

    where, options = (arguments.logs, arguments.out), {"allow_missing": arguments.allow_missing}
    engine = chosen_engine(arguments)
    if engine is None:
        counts = score_log(bundle.load(arguments.bundle), *where, arguments.tasks, **options)
    else:
        counts = score_parts(arguments.bundle, *where, engine, arguments.tasks, **options)
    print(dump_json({"out": str(arguments.out), **counts}))


def join_before(arguments: argparse.Namespace, model: str, logs: Uris) -> Sequence[str]:
    """Add what was served to the last location of the log of ``ranker daily``, if the arguments name the folders.

    Returns:
        Messages about damaged input that was left out.

    Raises:
        UsageError: only some of the arguments are given, or the location is not a local folder of ``ranker join``.
    """
    given = [value is not None for value in (arguments.served, arguments.feedback, arguments.window)]
    if not any(given):
        return ()
    if not all(given):
        raise UsageError("--served, --feedback and --window belong together: give all of them, or none")
    from pipelines.config.uri import redact_uri, split_uris
    from pipelines.console import print_status
    from pipelines.jobs.join import join
    from pipelines.loop.sources import LoopSources
    from pipelines.loop.state import is_joined_log

    log = split_uris(logs)[-1]
    if not isinstance(log, Path) or not is_joined_log(log):
        raise UsageError(
            f"{redact_uri(log)}: --served adds rows to the last folder of logs.path, which must be a local one for "
            "'ranker join' alone; add such a folder, for example path = ['log', 'joined']"
        )
    sources = LoopSources(arguments.served, arguments.feedback, arguments.repository, model)
    counts = join(sources, log, arguments.window)
    print_status(counts.to_text())
    return counts.left_out
