"""Commands for the feature store: items, users and counters."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.argument_types import duration, location, port, positive_int, remote_location
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import (
    BUNDLE,
    REPOSITORY,
    add_counter_flag,
    add_loop_folders,
    add_store_and_model,
    dump_json,
    require_complete,
    stop_on_signals,
    store_url,
)
from ranking.artifacts.object_store import FORMS
from ranking.errors import OutputError, UsageError

COUNTED_MODEL = "name of the model (default: the default model of the repository)"


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    for owner in ("item", "user"):
        text = f"load features of {owner}s into a feature store"
        load = commands.group(f"{owner}s", text, None, "COMMAND").add("load", text, _load_command)
        load.set_defaults(owner=owner)
        load.add_argument(
            "rows",
            type=location,
            metavar=f"{owner.upper()}S",
            help=f"Parquet file or folder with one row per {owner}",
        )
        load.add_argument("--bundle", type=Path, required=True, help=f"bundle that uses the features: {BUNDLE}")
        add_store_and_model(load, "name under which the bundle is served (default: the name in the bundle)")
        load.add_argument(
            "--ttl", type=positive_int, metavar="SECONDS", help="lifetime of the values (default: unlimited)"
        )

    actions = commands.group(
        "counters", "load counters into a feature store, and add impressions to them", "actions", "ACTION"
    )
    load_counters = actions.add(
        "load", "write the counters of a published model to a feature store", _counters_load_command
    )
    load_counters.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    add_counter_flag(load_counters, or_older=True)
    add_store_and_model(load_counters, COUNTED_MODEL)
    apply_counters = actions.add(
        "apply", "add the impressions of a log to the counters in a feature store", _counters_apply_command
    )
    apply_counters.add_argument("logs", type=location, metavar="LOG", help="Parquet file or folder, a path or URI")
    apply_counters.add_argument("--repository", type=Path, required=True, metavar="REPOSITORY", help=REPOSITORY)
    add_store_and_model(apply_counters, COUNTED_MODEL)

    check = actions.add("check", "compare the counters in a feature store with their totals", _counters_check_command)
    check.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    add_store_and_model(check, COUNTED_MODEL)

    follow = actions.add(
        "follow",
        "add what the service answers and what users do to the counters in a feature store",
        _counters_follow_command,
    )
    add_loop_folders(follow, required=True)
    follow.add_argument("--repository", type=Path, required=True, metavar="REPOSITORY", help=REPOSITORY)
    follow.add_argument(
        "--remote",
        type=remote_location,
        metavar="LOCATION",
        help=f"repository in object storage: {FORMS}, of which REPOSITORY is a copy that each step updates "
        "(default: it is not a copy)",
    )
    follow.add_argument("--state", type=Path, help=argparse.SUPPRESS)  # earlier versions kept a joined log there
    follow.add_argument(
        "--window",
        type=duration,
        default="10m",
        metavar="DURATION",
        help="time after an impression in which events count, for counters without a delay (default: 10m)",
    )
    follow.add_argument(
        "--every", type=duration, default="10s", metavar="DURATION", help="time between two steps (default: 10s)"
    )
    follow.add_argument("--once", action="store_true", help="run one step, print its result as JSON and exit")
    follow.add_argument("--metrics-port", type=port, metavar="PORT", help="port of metrics for Prometheus")
    follow.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of that port; 0.0.0.0 for all interfaces (default: 127.0.0.1)",
    )
    add_store_and_model(follow, COUNTED_MODEL)


def _load_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.load_features import load_features
    from ranking.artifacts import bundle

    url = store_url(arguments)
    ranker = bundle.load(arguments.bundle)
    model = ranker.schema.name if arguments.model is None else arguments.model
    prefix, ttl = arguments.prefix, arguments.ttl
    print(dump_json(load_features(arguments.rows, arguments.owner, ranker, model, url, prefix, ttl)))


def _counters_load_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.load_counters import load_counters

    url = store_url(arguments)
    options = {"allow_poorer_counters": arguments.allow_poorer_counters}
    print(dump_json(load_counters(arguments.repository, url, arguments.model, arguments.prefix, **options)))


def _counters_apply_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.apply_counters import apply_log

    url = store_url(arguments)
    print(dump_json(apply_log(arguments.logs, arguments.repository, url, arguments.model, arguments.prefix)))


def _counters_check_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.check_counters import check_counters, describe_missing

    result = check_counters(arguments.repository, store_url(arguments), arguments.model, arguments.prefix)
    print(dump_json(result))
    if message := describe_missing(result):
        raise OutputError(f"{result['to']} {message}")


def _counters_follow_command(arguments: argparse.Namespace) -> None:
    from pipelines.console import print_status
    from pipelines.jobs.follow_counters import Follower, FollowMetrics, follow
    from pipelines.jobs.followed_version import FollowOptions
    from pipelines.loop.sources import LoopSources
    from ranking.artifacts.remote_repository import RemoteRepository

    sources = LoopSources(arguments.served, arguments.feedback, arguments.repository, arguments.model)
    if not arguments.every:
        raise UsageError("--every 0s: a step needs time; choose 1s or more")
    if arguments.state is not None:
        print_status(f"--state is ignored: the store keeps what was followed; delete {arguments.state}")
    remote = None if arguments.remote is None else RemoteRepository(arguments.remote, print_status)
    options = FollowOptions(sources, store_url(arguments), arguments.prefix, arguments.window, remote)
    if arguments.once:
        result = Follower(options).step()
        print(dump_json(result))
        require_complete(result["left_out"])
        return
    follow(options, arguments.every, FollowMetrics(arguments.metrics_port, arguments.metrics_host), stop_on_signals())
