"""The ``ranker`` command line: parses arguments, runs a command and prints its result.

Each command imports the modules that it needs when it runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.cli.argument_types import location
from pipelines.cli.arguments import build_parser, walk_actions
from pipelines.cli.loop_commands import (
    collect_command,
    counters_apply_command,
    counters_check_command,
    counters_follow_command,
    counters_load_command,
    forget_command,
    join_before,
    join_command,
    load_command,
    require_complete,
)
from pipelines.cli.output import dump_json
from ranking.errors import LeftOutError, QualityGateError, RankerError, UsageError

EXIT_CODES: dict[type[RankerError], int] = {UsageError: 2, QualityGateError: 3, LeftOutError: 4}
"""Exit codes of errors; the exit code of all other errors is 1."""

LOCKED_TRAINING = "pip install --no-deps -r requirements/train.lock (CPU) or requirements/cuda-train.lock (GPU)"
INSTALL_HINTS = {
    **dict.fromkeys(("torch", "onnx", "torchrec", "fbgemm_gpu", "sklearn", "optuna", "duckdb"), LOCKED_TRAINING),
    "redis": "pip install 'dselect-ranker[redis]'",
    "confluent_kafka": "pip install 'dselect-ranker[kafka]'",
    "jinja2": "pip install 'dselect-ranker[report]'",
}
"""Modules that only some commands need, and how to install them."""

Command = Callable[[argparse.Namespace], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program name; default: those of the process.

    Returns:
        The exit code: 0 for success, 1 for an error, 2 for a usage error, 3 if a quality gate rejected a model, 4 for
        a result that leaves out damaged input, and 141 (128 + SIGPIPE) if the reader of stdout closed the pipe. For
        invalid arguments, argparse exits with 2.
    """
    arguments, unknown = build_parser().parse_known_args(argv)
    if unknown:  # parse_args would print the usage of all commands
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments.argv = ["ranker", *(sys.argv[1:] if argv is None else argv)]
    try:
        COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # for example, the reader is head
        # Python flushes stdout again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except RankerError as error:
        message = str(error).replace("\n", "\\n")  # names of columns may contain line breaks
        print(f"ranker: {message}", file=sys.stderr)
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in INSTALL_HINTS:
            raise
        print(f"ranker: this command needs {package}: {INSTALL_HINTS[package]}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ranker: interrupted", file=sys.stderr)
        return 1
    return 0


def demo_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker demo``."""
    from pipelines.jobs.demo import demo

    demo(arguments.dir)


def synthetic_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker logs synthetic``."""
    from pipelines.datasets.synthetic import FIRST_DAY, generate

    first_day = arguments.first_day or FIRST_DAY
    generate(arguments.out, arguments.rows, arguments.seed, arguments.conflict, first_day=first_day)
    print(arguments.out / "ranker.toml")


def kuairand_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker logs kuairand``."""
    from pipelines.datasets.kuairand import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def movielens_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker logs movielens``."""
    from pipelines.datasets.movielens import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def init_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker init``."""
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


def check_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker check``."""
    from pipelines.config.config import load_config
    from pipelines.jobs.check import check
    from pipelines.tuning.search_space import search_space

    config = load_config(arguments.config, [*arguments.overrides, *_bad_row_limit(arguments)])
    search_space(config)  # checks [tune]
    result = check(config, arguments.quarantine, suggest=arguments.suggest)
    print(dump_json(result.to_json()) if arguments.json else result.to_text())
    result.require_usable()


def train_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker train``."""
    from pipelines.config.config import load_config

    # The configuration is validated before the slow import of PyTorch.
    config = load_config(arguments.config, [*arguments.overrides, *_bad_row_limit(arguments)])
    from pipelines.console import is_main_process
    from pipelines.evaluation.format import format_evaluation
    from pipelines.jobs.train import train
    from pipelines.runs.run import RunFolder
    from pipelines.training.warm_start import WarmStart

    if arguments.reopen and arguments.earlier is None:
        raise UsageError("--reopen applies to the gates of an earlier run: name the run with --from")
    warm = WarmStart(RunFolder.open(arguments.earlier), arguments.reopen) if arguments.earlier else None
    run = train(
        config,
        arguments.folder,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        warm_start=warm,
        command=arguments.argv,
        baselines=True,
    )
    if not is_main_process():
        return
    evaluation = run.load_evaluation() if run.evaluation.exists() else None
    if arguments.json:
        print(dump_json({"run": str(run.path), "selection": run.load_selection(), "evaluation": evaluation}))
        return
    if evaluation is not None:
        print(format_evaluation(evaluation))
    print(run.path)


def _bad_row_limit(arguments: argparse.Namespace) -> list[str]:
    """Return ``--max-bad-rows`` as an override of the configuration."""
    return [] if arguments.max_bad_rows is None else [f"logs.max_bad_rows={arguments.max_bad_rows}"]


def tune_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker tune``."""
    from pipelines.config.config import load_config
    from pipelines.tuning.workers import format_summary, summarize, tune

    config = load_config(arguments.config)
    study = tune(config, arguments.study, arguments.trials, arguments.workers, arguments.timeout)
    summary = summarize(study)
    print(dump_json(summary) if arguments.json else format_summary(summary))
    if summary["best"] is None:
        raise RankerError(
            f"{arguments.study}: no trial converged; see trials/*.log in this folder, or increase --trials"
        )
    if not arguments.json:
        print(study.best_file)


def evaluate_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker evaluate``."""
    from pipelines.evaluation.evaluate import evaluate_all
    from pipelines.evaluation.format import format_evaluation
    from pipelines.evaluation.sources import resolve_scorers
    from pipelines.runs.run import RunFolder

    evaluation = evaluate_all(
        resolve_scorers(arguments.source),
        arguments.logs,
        arguments.slices,
        baselines=True,
        importance=arguments.importance,
    )
    print(dump_json(evaluation) if arguments.json else format_evaluation(evaluation))
    if arguments.importance and arguments.logs is None:  # the test split of a run
        RunFolder.open(arguments.source).add_to_evaluation("importance", evaluation["importance"])


def compare_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker compare``."""
    from pipelines.evaluation.compare import compare
    from pipelines.evaluation.format import format_comparison
    from pipelines.evaluation.sources import resolve_scorers

    comparison = compare(resolve_scorers(arguments.a), resolve_scorers(arguments.b), arguments.logs, baselines=True)
    comparison = {"a": str(arguments.a), "b": str(arguments.b), **comparison}
    print(dump_json(comparison) if arguments.json else format_comparison(comparison))


def report_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker report``."""
    from pipelines.report.page import write_report

    print(write_report(arguments.source, arguments.out))


def freeze_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker freeze``."""
    from pipelines.jobs.freeze import freeze_run

    freeze_run(arguments.source, arguments.out, arguments.embeddings)
    print(arguments.out)


def publish_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker publish``."""
    from pipelines.jobs.publish import publish

    name, version = publish(
        arguments.bundle,
        arguments.repository,
        arguments.name,
        arguments.keep,
        allow_poorer_counters=arguments.allow_poorer_counters,
    )
    print(arguments.repository / name / str(version))


def daily_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker daily``."""
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
    where = arguments.runs, arguments.repository

    def run_day(day: date) -> dict[str, Any]:
        return daily(config, *where, day, **options, command=arguments.argv)

    for record in run_days(first, last, run_day):
        version = arguments.repository / record["model"] / str(record["version"])
        print(dump_json(record) if arguments.json else version, flush=True)
    require_complete(left_out)


def release_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker release``."""
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


def score_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker score``."""
    from pipelines.jobs.score import score_log
    from ranking.artifacts import bundle

    ranker, allow_missing = bundle.load(arguments.bundle), arguments.allow_missing
    counts = score_log(ranker, arguments.logs, arguments.out, arguments.tasks, allow_missing=allow_missing)
    print(dump_json({"out": str(arguments.out), **counts}))


def serve_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker serve``."""
    from service.main import serve
    from service.settings import Settings, load_settings

    options = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    serve(load_settings(options, arguments.settings), arguments.host, arguments.port)


def keys_new_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker keys new``."""
    from service.http.auth.keys import create_key

    now = datetime.now(UTC).replace(microsecond=0)
    expires = None if arguments.days is None else now + timedelta(days=arguments.days)
    scopes, rate = tuple(arguments.scopes), arguments.max_requests_per_second
    secret = create_key(arguments.file, arguments.name, scopes, expires, rate)
    print(f"key '{arguments.name}' (it is not shown again; {arguments.file} contains its hash):", file=sys.stderr)
    print(secret)


def keys_list_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker keys list``."""
    from service.http.auth.keys import describe_key, read_keys

    keys = [describe_key(key) for key in read_keys(arguments.file)]
    if arguments.json:
        print(dump_json({"keys": keys}))
        return
    width = max([len(key["name"]) for key in keys], default=0)
    for key in keys:
        expiry = f"{'expired' if key['expired'] else 'expires'} {key['expires']}" if key["expires"] else "never expires"
        rate = key["max_requests_per_second"]
        limit = "" if rate is None else f"  at most {rate:g} requests/s"
        print(f"{key['name']:{width}}  {' '.join(key['scopes'])}  {expiry}{limit}")


def keys_revoke_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker keys revoke``."""
    from service.http.auth.keys import revoke_key

    revoke_key(arguments.file, arguments.name)


def bench_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker bench``."""
    from pipelines.bench.command import run

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the measured servers, as Ctrl-C does
    try:
        print(run(arguments))
    finally:
        signal.signal(signal.SIGTERM, previous)


def completion_command(arguments: argparse.Namespace) -> None:
    """Run ``ranker completion``."""
    import shtab

    parser = build_parser()
    for action in walk_actions(parser):
        if action.type in (Path, location):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))


COMMANDS: dict[str, Command] = {
    "demo": demo_command,
    "synthetic": synthetic_command,
    "kuairand": kuairand_command,
    "movielens": movielens_command,
    "init": init_command,
    "check": check_command,
    "train": train_command,
    "tune": tune_command,
    "evaluate": evaluate_command,
    "compare": compare_command,
    "report": report_command,
    "freeze": freeze_command,
    "publish": publish_command,
    "daily": daily_command,
    "release": release_command,
    "score": score_command,
    "load": load_command,
    "counters load": counters_load_command,
    "counters apply": counters_apply_command,
    "counters check": counters_check_command,
    "counters follow": counters_follow_command,
    "forget": forget_command,
    "collect": collect_command,
    "join": join_command,
    "serve": serve_command,
    "new": keys_new_command,
    "list": keys_list_command,
    "revoke": keys_revoke_command,
    "bench": bench_command,
    "completion": completion_command,
}
