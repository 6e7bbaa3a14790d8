"""Argument parser of the ``ranker`` command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from pipelines.cli.argument_types import (
    canary,
    day,
    days,
    duration,
    fraction,
    location,
    log_rows,
    non_negative_int,
    port,
    positive_int,
)
from pipelines.cli.loop_arguments import (
    BUNDLE,
    JSON,
    REPOSITORY,
    add_counter_flag,
    add_loop_commands,
    add_loop_folders,
    add_store,
)
from service.backends.base import BackendName
from service.settings import describe_setting
from service.telemetry.logs import LogFormat

CONFIG = "path of the ranker.toml"
RUN = "folder written by 'ranker train'"
NEW_FOLDER = "new folder"
KEY_FILE = "file with the hashes of the API keys of the service"

SHELLS = ("bash", "zsh", "fish", "tcsh")
"""Shells for which ``ranker completion`` prints a script."""
BENCH_PARTS = ("engines", "http", "bare", "open", "batching", "overload", "attacks", "served")
"""Parts that ``ranker bench`` can measure."""


EMBEDDINGS = ("float32", "float16", "int8")
"""Types of the rows of embedding tables in a bundle."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; it sets ``command`` to the name of the selected command and ``parser`` to its parser."""
    top = argparse.ArgumentParser(prog="ranker", description="Train, freeze, publish and serve a DSelect-k ranker.")
    top.add_argument("--version", action=_Version, help="print the version and exit")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str, parent: Any = commands) -> argparse.ArgumentParser:
        subparser: argparse.ArgumentParser = parent.add_parser(name, help=text, description=text)
        subparser.set_defaults(command=name, parser=subparser)
        return subparser

    demo = command("demo", "run the whole workflow on a generated log, up to one ranked response")
    demo.add_argument("--dir", type=Path, default=Path("demo"), help="new folder for all files (default: demo)")

    logs = commands.add_parser("logs", help="write a log, its side tables and a ranker.toml")
    sources = logs.add_subparsers(title="sources", required=True, metavar="SOURCE")
    synthetic = command("synthetic", "generate a log with known true probabilities", sources)
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
        help="degree of conflict between tasks, from 0 to 1 (default: each task mixes its own experts)",
    )
    synthetic.add_argument("--first-day", type=day, metavar="DATE", help="first day of the log (default: 2026-01-01)")
    kuairand = command("kuairand", "convert the original files of KuaiRand (CSV or Parquet)", sources)
    kuairand.add_argument("--raw", type=Path, required=True, help="folder of the original files")
    kuairand.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)
    movielens = command("movielens", "convert the ratings of MovieLens 100k", sources)
    movielens.add_argument(
        "--raw", type=Path, required=True, help="folder ml-100k, original or of RecBole, or the wheel of RecBole"
    )
    movielens.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)

    init = command("init", "write a first ranker.toml for a log, with the reason of every guess in a comment")
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

    check = command("check", "validate a configuration and its log")
    check.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    check.add_argument("--quarantine", type=Path, help="file for the bad rows, with one JSON object per line")
    _add_bad_row_limit(check)
    _add_overrides(check)
    check.add_argument("--suggest", action="store_true", help="propose [[counters]] for the log")
    check.add_argument("--json", action="store_true", help=JSON)

    train = command("train", "train a model until its gates converge, and evaluate it")
    train.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    train.add_argument("--run", type=Path, required=True, dest="folder", help="new folder for the run")
    existing = train.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="continue an interrupted run, if there is one")
    existing.add_argument(
        "--overwrite", action="store_true", help="replace an unfinished run in the folder; finished runs are kept"
    )
    train.add_argument("--from", type=Path, dest="earlier", metavar="RUN", help="start from the weights of this run")
    train.add_argument("--reopen", action="store_true", help="with --from: let the gates select their experts again")
    _add_bad_row_limit(train)
    _add_overrides(train)
    train.add_argument("--json", action="store_true", help=JSON)

    tune = command("tune", "search for better settings with one training per trial")
    tune.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    tune.add_argument(
        "--study", type=Path, required=True, metavar="DIR", help="folder of the study; an existing study is continued"
    )
    tune.add_argument(
        "--trials", type=positive_int, default=50, metavar="N", help="total number of trials (default: 50)"
    )
    tune.add_argument("--workers", type=positive_int, default=1, metavar="W", help="parallel trials (default: 1)")
    tune.add_argument("--timeout", type=positive_int, metavar="SECONDS", help="start no trial after this time")
    tune.add_argument("--json", action="store_true", help=JSON)

    evaluate = command("evaluate", "evaluate a run on its test split, or a run or bundle on a log")
    evaluate.add_argument("source", type=Path, metavar="RUN|BUNDLE", help="run or bundle to evaluate")
    evaluate.add_argument(
        "--logs",
        type=location,
        help="Parquet file or folder with labels, a path or URI (default: the test split of the run)",
    )
    evaluate.add_argument(
        "--slice",
        action="append",
        dest="slices",
        metavar="NAME",
        help="evaluate the values of this feature separately, or new_user or new_item; may be repeated; replaces the "
        "configured slices",
    )
    evaluate.add_argument(
        "--importance",
        action="store_true",
        help="measure how much worse the predictions become when the values of each feature are shuffled; for a run "
        "without --logs, add the result to its evaluation.json and report",
    )
    evaluate.add_argument("--json", action="store_true", help=JSON)

    compare = command("compare", "compare two runs or bundles on the same rows, with paired intervals")
    compare.add_argument("a", type=Path, metavar="A", help="run or bundle")
    compare.add_argument("b", type=Path, metavar="B", help="run or bundle")
    compare.add_argument(
        "--logs",
        type=location,
        help="Parquet file or folder with labels, a path or URI (default: the test split of A, or of B if A is a "
        "bundle)",
    )
    compare.add_argument("--json", action="store_true", help=JSON)

    report = command("report", "write the report of a run as one self-contained HTML page")
    report.add_argument("source", type=Path, metavar="RUN", help=RUN)
    report.add_argument("--out", type=Path, help="HTML file; an existing file is replaced (default: RUN/report.html)")

    freeze = command("freeze", "write the bundle of a converged run")
    freeze.add_argument("source", type=Path, metavar="RUN", help=RUN)
    freeze.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help=NEW_FOLDER)
    _add_embeddings(freeze)

    publish = command("publish", "make a bundle the current version in a repository")
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

    release = command("release", "show or change which versions of a published model are served")
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

    daily = command("daily", "train on a new day, and publish the model unless it is worse than the served one")
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
    _add_embeddings(daily)
    _add_overrides(daily)
    daily.add_argument("--json", action="store_true", help=JSON)

    score = command("score", "score a log with a bundle")
    score.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    score.add_argument(
        "--logs", type=location, required=True, help="Parquet file or folder, a path or URI; labels are not needed"
    )
    score.add_argument("--out", type=Path, required=True, help="Parquet file; replaced when all rows are scored")
    score.add_argument("--tasks", nargs="+", metavar="TASK", help="tasks to score (default: all)")
    score.add_argument(
        "--allow-missing",
        action="store_true",
        help="score although more than half of the feature columns have no value in any row",
    )

    add_loop_commands(commands, command)

    serve = command("serve", "serve a repository over HTTP")
    serve.add_argument("repository", type=Path, metavar="REPOSITORY", help=REPOSITORY)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    options: dict[str, dict[str, Any]] = {
        "keys": {"type": Path, "metavar": "FILE"},
        "no_keys": {"action": "store_true", "default": None},
        "operations_port": {"type": port, "metavar": "PORT"},
        "default_model": {"metavar": "MODEL"},
        "backend": {"choices": get_args(BackendName)},
        "workers": {"type": positive_int},
        "threads": {"type": positive_int},
        "log_format": {"choices": get_args(LogFormat)},
    }
    for setting, argument in options.items():
        option = "--model" if setting == "default_model" else f"--{setting.replace('_', '-')}"
        serve.add_argument(option, dest=setting, help=describe_setting(setting), **argument)
    serve.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="TOML file with settings of the service; RANKER_… variables override it",
    )

    keys = commands.add_parser("keys", help="create, list and revoke API keys of the service")
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION")
    new_key = command("new", "create a key, print it once and add its hash to the file", actions)
    new_key.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    new_key.add_argument("--name", required=True, help="name of the key; every key has a different name")
    new_key.add_argument(
        "--scopes",
        nargs="+",
        required=True,
        choices=["rank", "feedback", "read", "admin"],
        help="operations that it permits",
    )
    new_key.add_argument("--days", type=days, help="days until it expires (default: never)")
    new_key.add_argument(
        "--max-requests-per-second",
        type=float,
        metavar="N",
        help="requests above this rate are rejected with 429; each process counts its own (default: no limit)",
    )
    list_keys = command("list", "print names, scopes and expiry of all keys", actions)
    list_keys.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    list_keys.add_argument("--json", action="store_true", help=JSON)
    revoke = command("revoke", "remove a key from the file; it becomes invalid within seconds", actions)
    revoke.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    revoke.add_argument("name", metavar="NAME", help="name of the key")

    bench = command("bench", "measure the cost of scoring and serving on this machine, in about a minute")
    bench.add_argument(
        "bundle",
        type=Path,
        nargs="?",
        metavar="BUNDLE",
        help=f"{BUNDLE} (default: a reference model with random weights)",
    )
    bench.add_argument(
        "--only",
        choices=BENCH_PARTS,
        nargs="+",
        metavar="PART",
        help=f"parts to measure, of {', '.join(BENCH_PARTS)} (default: engines, http and open; with --full all)",
    )
    bench.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        help="cores of the measured process; load comes from the other cores (default: 1)",
    )
    bench.add_argument(
        "--items", type=positive_int, help="items of the reference model (default: 100000; with --full 1000000)"
    )
    amount = bench.add_mutually_exclusive_group()
    amount.add_argument(
        "--full", action="store_true", help="measure more sizes in three turns: about a quarter of an hour"
    )
    amount.add_argument("--quick", action="store_true", help="measure tiny sizes, to test the benchmark itself")
    bench.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results to FILE; results of parts that are not measured are kept",
    )

    completion = command("completion", "print a completion script for a shell")
    completion.add_argument("shell", choices=SHELLS, help="shell that loads the script")
    return top


def walk_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from walk_actions(subparser)


class _Version(argparse.Action):
    """Prints the version and exits; reads the package metadata only when it is used."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version('dselect-ranker')}")
        parser.exit()


def _add_bad_row_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-bad-rows",
        type=fraction,
        metavar="SHARE",
        help="fail if more than this share of the rows is bad (default: logs.max_bad_rows, 0.01)",
    )


def _add_embeddings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--embeddings",
        choices=EMBEDDINGS,
        default=EMBEDDINGS[0],
        help="type of the rows of embedding tables in the bundle; float16 takes half the memory of float32, int8 less "
        "(default: float32)",
    )


def _add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting, such as training.epochs=3; may be repeated",
    )
