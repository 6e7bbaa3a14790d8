"""Commands for logs and configurations: demo, logs, init and check."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.cli.argument_types import day, fraction, location, log_rows, non_negative_int
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import (
    CONFIG,
    JSON,
    NEW_FOLDER,
    add_bad_row_limit,
    add_engine,
    add_overrides,
    bad_row_limit,
    chosen_engine,
    dump_json,
)


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    demo = commands.add("demo", "run the whole workflow on a generated log, up to one ranked response", _demo_command)
    demo.add_argument("--dir", type=Path, default=Path("demo"), help="new folder for all files (default: demo)")

    sources = commands.group("logs", "write a log, its side tables and a ranker.toml", "sources", "SOURCE")
    synthetic = sources.add("synthetic", "generate a log with known true probabilities", _synthetic_command)
    synthetic.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)
    synthetic.add_argument(
        "--rows", type=log_rows, default=200_000, help="number of impressions, at least 2000 (default: 200000)"
    )
    synthetic.add_argument(
        "--seed", type=non_negative_int, default=0, help="the same seed gives the same log (default: 0)"
    )
    synthetic.add_argument(
        "--conflict",
        type=fraction,
        help="another log, with 24 tasks in 8 groups: share of what the groups do not have in common, from 0 to 1",
    )
    synthetic.add_argument("--first-day", type=day, metavar="DATE", help="first day of the log (default: 2026-01-01)")
    kuairand = sources.add("kuairand", "convert the original files of KuaiRand (CSV or Parquet)", _kuairand_command)
    kuairand.add_argument("--raw", type=Path, required=True, help="folder of the original files")
    kuairand.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)
    movielens = sources.add("movielens", "convert the ratings of MovieLens 100k or 1M", _movielens_command)
    movielens.add_argument(
        "--raw",
        type=Path,
        required=True,
        help="folder ml-100k (original or of RecBole) or ml-1m, its zip file, or the wheel of RecBole",
    )
    movielens.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)

    init = commands.add(
        "init", "write a first ranker.toml for a log, with the reason of every guess in a comment", _init_command
    )
    init.add_argument("log", type=location, metavar="LOG", help="Parquet file or folder, or CSV file; a path or URI")
    init.add_argument("--users", type=location, metavar="FILE", help="table of user features, Parquet or CSV")
    init.add_argument("--items", type=location, metavar="FILE", help="table of item features, Parquet or CSV")
    init.add_argument(
        "--out",
        type=Path,
        default=Path("ranker.toml"),
        metavar="FILE",
        help="new configuration; converted copies are written next to it (default: ranker.toml)",
    )
    init.add_argument("--name", help="name of the model (default: the name of the log)")
    init.add_argument("--time", metavar="COLUMN", help="time of the impression (default: guessed)")
    init.add_argument("--user", metavar="COLUMN", help="user id (default: guessed)")
    init.add_argument("--item", metavar="COLUMN", help="item id (default: guessed)")
    init.add_argument(
        "--label",
        action="append",
        default=[],
        dest="labels",
        metavar="COLUMN",
        help="what to predict; may be repeated (default: guessed)",
    )

    check = commands.add("check", "validate a configuration and its log", _check_command)
    check.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    check.add_argument("--quarantine", type=Path, help="file for the bad rows, with one JSON object per line")
    add_bad_row_limit(check)
    add_overrides(check)
    check.add_argument("--suggest", action="store_true", help="propose [[counters]] for the log")
    add_engine(check, "read the files of the log")
    check.add_argument("--json", action="store_true", help=JSON)


def _demo_command(arguments: argparse.Namespace) -> None:
    from pipelines.jobs.demo import demo

    demo(arguments.dir)


def _synthetic_command(arguments: argparse.Namespace) -> None:
    from pipelines.datasets import conflict, synthetic

    rows, seed, first_day = arguments.rows, arguments.seed, arguments.first_day or synthetic.FIRST_DAY
    if arguments.conflict is None:
        synthetic.generate(arguments.out, rows, seed, first_day=first_day)
    else:
        conflict.generate(arguments.out, arguments.conflict, rows, seed, first_day=first_day)
    print(arguments.out / "ranker.toml")


def _kuairand_command(arguments: argparse.Namespace) -> None:
    from pipelines.datasets.kuairand import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def _movielens_command(arguments: argparse.Namespace) -> None:
    from pipelines.datasets.movielens import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def _init_command(arguments: argparse.Namespace) -> None:
    from pipelines.init.roles import Overrides
    from pipelines.jobs.init import init

    written = init(
        arguments.log,
        arguments.out,
        users=arguments.users,
        items=arguments.items,
        name=arguments.name,
        overrides=Overrides(arguments.time, arguments.user, arguments.item, arguments.labels),
        command=arguments.argv,
    )
    print(written.to_text())


def _check_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config
    from pipelines.jobs.check import check
    from pipelines.tuning.search_space import search_space

    config = load_config(arguments.config, [*arguments.overrides, *bad_row_limit(arguments)])
    search_space(config)  # checks [tune]
    if config.training.teachers:
        from pipelines.training.teachers import open_teachers

        open_teachers(config)
    result = check(config, arguments.quarantine, suggest=arguments.suggest, engine=chosen_engine(arguments))
    print(dump_json(result.to_json()) if arguments.json else result.to_text())
    result.require_usable()
