"""What the commands of ``ranker`` are called and what they take."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pipelines.cli.argument_types import (
    canary,
    day,
    days,
    fraction,
    log_place,
    log_rows,
    non_negative_int,
    port,
    positive_int,
    store,
)
from ranking.artifacts.feature_store_keys import DEFAULT_PREFIX

CONFIG = "the ranker.toml"
BUNDLE = "folder that 'ranker freeze' wrote, or a published version"
NEW_FOLDER = "new folder"
JSON = "print the result as JSON"
KEY_FILE = "the service's API keys, hashed"


BENCH_PARTS = ("engines", "http", "bare", "open", "batching", "overload", "attacks")
"""Parts that ``ranker bench`` can measure."""


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments; ``command`` is the name of the one that was given."""
    top = argparse.ArgumentParser(prog="ranker", description="Train, freeze, publish and serve a DSelect-k ranker.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str, within: Any = commands) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = within.add_parser(name, help=text, description=text)
        added.set_defaults(command=name)
        return added

    demo = command("demo", "the whole loop on generated logs, up to one ranked answer")
    demo.add_argument("--dir", type=Path, default=Path("demo"), help="new folder for all files (default: demo)")

    logs = commands.add_parser("logs", help="write a log, its side tables and a ranker.toml")
    sources = logs.add_subparsers(title="sources", required=True, metavar="SOURCE")
    synthetic = command("synthetic", "a generated log whose true probabilities are known", sources)
    synthetic.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)
    synthetic.add_argument(
        "--rows", type=log_rows, default=200_000, help="impressions, at least 2000 (default: 200000)"
    )
    synthetic.add_argument(
        "--seed", type=non_negative_int, default=0, help="the same seed writes the same log (default: 0)"
    )
    synthetic.add_argument(
        "--conflict", type=fraction, help="how far tasks disagree, from 0 to 1 (default: each mixes its own experts)"
    )
    kuairand = command("kuairand", "KuaiRand's original files (CSV or Parquet)", sources)
    kuairand.add_argument("--raw", type=Path, required=True, help="folder of the original files")
    kuairand.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)

    check = command("check", "validate a configuration and its log")
    check.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    check.add_argument("--quarantine", type=Path, help="write bad rows there, a JSON object a line")
    check.add_argument("--json", action="store_true", help=JSON)

    train = command("train", "train, converge and evaluate")
    train.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    train.add_argument("--run", type=Path, required=True, dest="folder", help="new folder for the run")
    train.add_argument("--resume", action="store_true", help="go on with an interrupted run, if there is one")
    train.add_argument("--from", type=Path, dest="earlier", metavar="RUN", help="go on from the weights of this run")
    train.add_argument("--reopen", action="store_true", help="with --from: let the gates choose their experts anew")
    _add_overrides(train)
    train.add_argument("--json", action="store_true", help=JSON)

    tune = command("tune", "search for better settings, each trial a training")
    tune.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    tune.add_argument(
        "--study", type=Path, required=True, metavar="DIR", help="folder of the study; one that is there goes on"
    )
    tune.add_argument("--trials", type=positive_int, default=50, metavar="N", help="in total (default: 50)")
    tune.add_argument("--workers", type=positive_int, default=1, metavar="W", help="trials at a time (default: 1)")
    tune.add_argument("--timeout", type=positive_int, metavar="SECONDS", help="begin no trial after so long")
    tune.add_argument("--json", action="store_true", help=JSON)

    evaluate = command("evaluate", "measure a run on its test split, or a run or bundle on a log")
    evaluate.add_argument("source", type=Path, metavar="RUN|BUNDLE", help="what is measured")
    evaluate.add_argument(
        "--logs", type=log_place, help="Parquet with labels, a path or URI; default: the run's own test split"
    )
    evaluate.add_argument(
        "--slice",
        action="append",
        dest="slices",
        metavar="NAME",
        help="measure by the values of this feature too, or by new_user or new_item; may be repeated; replaces the "
        "configured slices",
    )
    evaluate.add_argument("--json", action="store_true", help=JSON)

    compare = command("compare", "measure two runs or bundles on the same rows, with paired intervals")
    compare.add_argument("a", type=Path, metavar="A", help="run or bundle")
    compare.add_argument("b", type=Path, metavar="B", help="run or bundle")
    compare.add_argument(
        "--logs", type=log_place, help="Parquet with labels; default: A's test split (B's if A is a bundle)"
    )
    compare.add_argument("--json", action="store_true", help=JSON)

    report = command("report", "write a run's report, one self-contained HTML page")
    report.add_argument("source", type=Path, metavar="RUN", help="folder that 'ranker train' wrote")
    report.add_argument("--out", type=Path, help="HTML file, replaced if it is there (default: RUN/report.html)")

    freeze = command("freeze", "write the bundle of a converged run")
    freeze.add_argument("source", type=Path, metavar="RUN", help="folder that 'ranker train' wrote")
    freeze.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help=NEW_FOLDER)

    publish = command("publish", "make a bundle the current version in a repository")
    publish.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    publish.add_argument("repository", type=Path, metavar="REPOSITORY", help="folder of published models")
    publish.add_argument("--name", help="model name (default: the bundle's)")
    publish.add_argument(
        "--keep",
        type=positive_int,
        metavar="N",
        help="remove versions beyond the N newest, but none that is served (default: keep all)",
    )

    release = command("release", "show or change which versions of a published model are served")
    release.add_argument("repository", type=Path, metavar="REPOSITORY", help="folder of published models")
    release.add_argument("name", metavar="NAME", help="of the model")
    release.add_argument(
        "--version", type=positive_int, metavar="N", help="the current version: to roll back or forward"
    )
    pinning = release.add_mutually_exclusive_group()
    pinning.add_argument(
        "--pin", action="store_true", default=None, dest="pinned", help="newly published versions do not become current"
    )
    pinning.add_argument("--unpin", action="store_false", default=None, dest="pinned", help="they do again")
    canaries = release.add_mutually_exclusive_group()
    canaries.add_argument(
        "--canary", type=canary, metavar="N=WEIGHT", help="version N answers this share of the users, 0 to 1"
    )
    canaries.add_argument("--no-canary", action="store_true", help="the current version answers all")
    shadows = release.add_mutually_exclusive_group()
    shadows.add_argument(
        "--shadow", type=positive_int, metavar="N", help="version N scores what others answer; differences are metrics"
    )
    shadows.add_argument("--no-shadow", action="store_true", help="nothing is scored twice")

    daily = command(
        "daily", "go on training with a new day, and publish the model unless it is worse than the served one"
    )
    daily.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    daily.add_argument(
        "--repository", type=Path, required=True, metavar="REPOSITORY", help="folder of published models"
    )
    daily.add_argument("--runs", type=Path, required=True, metavar="DIR", help="folder of a run a day")
    daily.add_argument(
        "--day", type=day, metavar="DATE", help="newest of the log; judges the model (default: yesterday, UTC)"
    )
    daily.add_argument(
        "--margin",
        type=fraction,
        default=0.01,
        metavar="SHARE",
        help="refuse a model whose AUC, log loss or RMSE of a task is worse by more than this share (default: 0.01)",
    )
    daily.add_argument("--fresh", action="store_true", help="train from the start, as after a change of features")
    _add_overrides(daily)
    daily.add_argument("--json", action="store_true", help=JSON)

    score = command("score", "score a log with a bundle")
    score.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    score.add_argument(
        "--logs", type=log_place, required=True, help="Parquet file or folder, a path or URI; needs no labels"
    )
    score.add_argument("--out", type=Path, required=True, help="Parquet file, replaced once all rows are scored")
    score.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all")

    for owner in ("item", "user"):
        side = commands.add_parser(f"{owner}s", help=f"features of {owner}s in a store that services share")
        load = command("load", f"load {owner}s into it", side.add_subparsers(required=True, metavar="COMMAND"))
        load.set_defaults(owner=owner)
        load.add_argument(
            "rows",
            type=log_place,
            metavar=f"{owner.upper()}S",
            help=f"Parquet file or folder, one row for each {owner}",
        )
        load.add_argument("--bundle", type=Path, required=True, help=f"whose features these are: {BUNDLE}")
        load.add_argument(
            "--to",
            type=store,
            metavar="URL",
            default=os.environ.get("RANKER_STORE"),
            help="redis://HOST:PORT/DB, rediss:// or unix:// (default: the variable RANKER_STORE)",
        )
        load.add_argument("--model", help="name under which the bundle is served (default: the bundle's)")
        load.add_argument(
            "--prefix",
            default=DEFAULT_PREFIX,
            help=f"of the keys, the service's store_prefix (default: {DEFAULT_PREFIX})",
        )
        load.add_argument(
            "--ttl", type=positive_int, metavar="SECONDS", help="after which values go (default: they stay)"
        )

    serve = command("serve", "serve a repository over HTTP")
    serve.add_argument("repository", type=Path, metavar="REPOSITORY", help="folder of published models")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    serve.add_argument("--keys", type=Path, metavar="FILE", help="API keys that are let in; see 'ranker keys'")
    serve.add_argument("--no-keys", action="store_true", default=None, help="let all in, on any --host")
    serve.add_argument(
        "--operations-port",
        type=port,
        metavar="PORT",
        help="port of metrics and admin operations (default: 8001 if --host can be reached from other machines, else "
        "the service's)",
    )
    serve.add_argument("--model", help="the model that answers /v1/rank (default: the only one)")
    serve.add_argument(
        "--backend",
        choices=["auto", "onnxruntime", "cuda", "torch"],
        help="what executes the models (default: cuda if there is a GPU, else onnxruntime)",
    )
    serve.add_argument("--workers", type=positive_int, help="processes (default: 1; with a GPU always 1)")
    serve.add_argument(
        "--threads", type=positive_int, help="threads of each process that score (default: the cores / the workers)"
    )
    serve.add_argument(
        "--log-format", choices=["json", "text"], help="of log lines (default: text on a terminal, else json)"
    )
    serve.add_argument(
        "--settings", type=Path, metavar="FILE", help="TOML with any of the service's settings; RANKER_… variables win"
    )

    keys = commands.add_parser("keys", help="API keys of the service: make, list, revoke")
    actions = keys.add_subparsers(title="actions", required=True, metavar="ACTION")
    new_key = command("new", "make a key, print it once and add its hash to the file", actions)
    new_key.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    new_key.add_argument("--name", required=True, help="whose it is; two keys of one application have two names")
    new_key.add_argument(
        "--scopes", nargs="+", required=True, choices=["rank", "feedback", "admin"], help="what it may do"
    )
    new_key.add_argument("--days", type=days, help="it expires after so many (default: never)")
    list_keys = command("list", "names, scopes and expiry of all keys", actions)
    list_keys.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    list_keys.add_argument("--json", action="store_true", help=JSON)
    revoke = command("revoke", "take a key out of the file; it stops working within seconds", actions)
    revoke.add_argument("file", type=Path, metavar="FILE", help=KEY_FILE)
    revoke.add_argument("name", metavar="NAME", help="of the key")

    bench = command("bench", "measure the cost of scoring and serving on this machine")
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
        default=BENCH_PARTS,
        metavar="PART",
        help=f"parts to measure, of {', '.join(BENCH_PARTS)} (default: all)",
    )
    bench.add_argument(
        "--threads",
        type=positive_int,
        default=1,
        help="cores of the measured process; load comes from the other cores (default: 1)",
    )
    bench.add_argument("--items", type=positive_int, help="items of the reference model (default: 1000000)")
    bench.add_argument("--quick", action="store_true", help="measure tiny sizes, to test the benchmark itself")
    bench.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results to FILE; it keeps the results of other parts"
    )
    return top


def _add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting, such as training.epochs=3; may be repeated",
    )
