"""Arguments of the commands for the feature store and for what was served: load, counters, collect, join and forget."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.cli.argument_types import duration, kafka_address, location, moment, port, positive_int, store_address
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX
from ranking.served_log.schema import SHOWN

BUNDLE = "folder written by 'ranker freeze', or a published version"
REPOSITORY = "folder of published models"
COUNTED_MODEL = "name of the model (default: the default model of the repository)"
JSON = "print the result as JSON"

AddCommand = Callable[..., argparse.ArgumentParser]
"""Adds a command by its name, its help and the subparsers that it belongs to (default: those of ``ranker``)."""


def add_loop_commands(commands: Any, command: AddCommand) -> None:
    """Add the commands.

    Args:
        commands: subparsers of ``ranker``.
        command: function that adds a command.
    """
    for owner in ("item", "user"):
        owner_commands = commands.add_parser(f"{owner}s", help=f"load features of {owner}s into a feature store")
        load = command(
            "load",
            f"load features of {owner}s into a feature store",
            owner_commands.add_subparsers(required=True, metavar="COMMAND"),
        )
        load.set_defaults(owner=owner)
        load.add_argument(
            "rows",
            type=location,
            metavar=f"{owner.upper()}S",
            help=f"Parquet file or folder with one row per {owner}",
        )
        load.add_argument("--bundle", type=Path, required=True, help=f"bundle that uses the features: {BUNDLE}")
        _add_store(load, "name under which the bundle is served (default: the name in the bundle)")
        load.add_argument(
            "--ttl", type=positive_int, metavar="SECONDS", help="lifetime of the values (default: unlimited)"
        )

    counters = commands.add_parser("counters", help="load counters into a feature store, and add impressions to them")
    counter_actions = counters.add_subparsers(title="actions", required=True, metavar="ACTION")
    load_counters = command("load", "write the counters of a published model to a feature store", counter_actions)
    load_counters.set_defaults(command="counters load")
    load_counters.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    add_counter_flag(load_counters, or_older=True)
    _add_store(load_counters, COUNTED_MODEL)
    apply_counters = command(
        "apply", "add the impressions of a log to the counters in a feature store", counter_actions
    )
    apply_counters.set_defaults(command="counters apply")
    apply_counters.add_argument("logs", type=location, metavar="LOG", help="Parquet file or folder, a path or URI")
    apply_counters.add_argument("--repository", type=Path, required=True, metavar="REPOSITORY", help=REPOSITORY)
    _add_store(apply_counters, COUNTED_MODEL)

    check = command("check", "compare the counters in a feature store with their totals", counter_actions)
    check.set_defaults(command="counters check")
    check.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    _add_store(check, COUNTED_MODEL)

    follow = command(
        "follow", "add what the service answers and what users do to the counters in a feature store", counter_actions
    )
    follow.set_defaults(command="counters follow")
    add_loop_folders(follow, required=True)
    follow.add_argument("--repository", type=Path, required=True, metavar="REPOSITORY", help=REPOSITORY)
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
    _add_store(follow, COUNTED_MODEL)

    forget = command("forget", "remove the data of one user from logs and the feature store")
    forget.add_argument("user", metavar="USER", help="id of the user")
    forget.add_argument("--served", type=Path, metavar="DIR", help="folder of the served log")
    forget.add_argument("--feedback", type=Path, metavar="DIR", help="folder of feedback; needs --served")
    forget.add_argument(
        "--log", type=Path, action="append", default=[], metavar="LOG", help="Parquet file or folder; may be repeated"
    )
    forget.add_argument(
        "--user-column", default="user_id", metavar="NAME", help="column of the user id in --log (default: user_id)"
    )
    forget.add_argument(
        "--user-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key that hashes the user ids of the served log (the setting served_log_user_key)",
    )
    forget.add_argument("--repository", type=Path, metavar="REPOSITORY", help=f"{REPOSITORY}; for --to")
    _add_store(forget, "model whose keys are removed from the store (default: all models of the repository)")

    collect = command("collect", "copy a served log or feedback from a Kafka topic to a folder")
    collect.add_argument(
        "topic",
        type=kafka_address,
        metavar="TOPIC",
        help="kafka://HOST:PORT[,HOST:PORT]/TOPIC; setting served_log or feedback_dir",
    )
    collect.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder of the files, for 'ranker join'")
    collect.add_argument(
        "--group",
        default="ranker-collect",
        metavar="NAME",
        help="consumer group, under which the cluster keeps what was collected (default: ranker-collect)",
    )
    collect.add_argument("--follow", action="store_true", help="wait for new files at the end of the topic")

    join = command("join", "attribute feedback to served requests, and add the rows to a log for 'ranker train'")
    add_loop_folders(join, required=True)
    join.add_argument(
        "--window",
        type=duration,
        required=True,
        metavar="DURATION",
        help="time after an impression in which events count, such as 24h; its rows are written afterwards",
    )
    join.add_argument("--out", type=Path, required=True, metavar="LOG", help="folder of the log; rows are added to it")
    join.add_argument(
        "--until",
        type=moment,
        metavar="TIME",
        help="write the rows of windows that have closed by this time (default: now, or the time of the oldest "
        "unfinished file of feedback)",
    )
    join.add_argument(
        "--shown",
        default=SHOWN,
        metavar="NAME",
        help="label that marks the items that were shown; the other items of such requests give no rows (default: "
        f"{SHOWN})",
    )
    join.add_argument("--model", help="model whose requests to join (default: the only one in the served log)")
    join.add_argument(
        "--repository", type=Path, help="repository of the versions (default: the one that the service named)"
    )
    join.add_argument("--json", action="store_true", help=JSON)


def _add_store(parser: argparse.ArgumentParser, model: str) -> None:
    """Add the address, the model and the prefix of the keys in a store; ``model`` is the help of ``--model``."""
    parser.add_argument("--model", help=model)
    add_store(parser)


def add_counter_flag(parser: argparse.ArgumentParser, *, or_older: bool = False) -> None:
    """Add the flag of commands that replace counters; ``or_older``: it accepts older counters, too."""
    parser.add_argument(
        "--allow-poorer-counters",
        action="store_true",
        help="continue even if the counters lack more than a tenth of the impressions of those that they replace"
        f"{', or are older' if or_older else ''} (default: do not)",
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the address and the prefix of the keys in a store."""
    parser.add_argument(
        "--to",
        type=store_address,
        metavar="URL",
        default=os.environ.get("RANKER_STORE"),
        help="address of the store, such as redis://HOST:PORT/DB (default: the variable RANKER_STORE)",
    )
    parser.add_argument(
        "--prefix",
        default=DEFAULT_KEY_PREFIX,
        help=f"prefix of the keys; the setting store_prefix of the service (default: {DEFAULT_KEY_PREFIX})",
    )


def add_loop_folders(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the folders that the service writes."""
    parser.add_argument(
        "--served", type=Path, required=required, metavar="DIR", help="served log; setting served_log of the service"
    )
    parser.add_argument(
        "--feedback", type=Path, required=required, metavar="DIR", help="feedback; setting feedback_dir of the service"
    )
