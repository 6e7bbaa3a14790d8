"""The command line ``ranker``: parses, calls, prints. Each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pipelines.cli.arguments import parser
from ranking.errors import RankerError, QualityGateError, UsageError

STATUS: dict[type[RankerError], int] = {UsageError: 2, QualityGateError: 3}
"""With which the command line exits after an error; after all others with 1."""
TRAINING_EXTRAS = ("torch", "onnx", "torchrec", "fbgemm_gpu", "sklearn", "optuna")

Command = Callable[[argparse.Namespace], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 if it did what was asked, 1 if it failed, 2 (through argparse) if it was used wrongly, 3 if it refused a model
        that is worse than the served one, 141 if who reads its output had enough of it, as of any tool that SIGPIPE
        ends.
    """
    arguments = parser().parse_args(argv)
    arguments.argv = ["ranker", *(sys.argv[1:] if argv is None else argv)]
    try:
        COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # such as head; nothing more can be written there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except RankerError as error:
        print(f"ranker: {error}", file=sys.stderr)
        return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_EXTRAS:
            raise
        how = "pip install --no-deps -r requirements/train.lock (CPU) or requirements/cuda-train.lock"
        print(f"ranker: this command needs {error.name}, which serving does without: {how}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ranker: interrupted", file=sys.stderr)
        return 1
    return 0


def run_demo(arguments: argparse.Namespace) -> None:
    """``ranker demo``."""
    from pipelines.jobs.demo import demo

    demo(arguments.dir)


def run_synthetic(arguments: argparse.Namespace) -> None:
    """``ranker logs synthetic``."""
    from pipelines.datasets.synthetic import generate

    generate(arguments.out, arguments.rows, arguments.seed, arguments.conflict)
    print(arguments.out / "ranker.toml")


def run_kuairand(arguments: argparse.Namespace) -> None:
    """``ranker logs kuairand``."""
    from pipelines.datasets.kuairand import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def run_check(arguments: argparse.Namespace) -> None:
    """``ranker check``."""
    from pipelines.config.config import load_config
    from pipelines.data.profile import profile_log, require_learnable
    from pipelines.data.reader import LogReader, load_tables
    from ranking.encoding.encoder_fitter import EncoderFitter

    loaded = load_config(arguments.config)
    schema = loaded.training_schema
    reader = LogReader(loaded.logs.path, schema, load_tables(loaded.logs, schema))
    found = profile_log(reader, loaded.logs, schema, arguments.quarantine, on_train=EncoderFitter(schema).add)
    print(as_json(found.to_json()) if arguments.json else found.to_text())
    require_learnable(found, loaded)


def run_train(arguments: argparse.Namespace) -> None:
    """``ranker train``."""
    from pipelines.config.config import load_config
    from pipelines.evaluation.format import format_evaluation

    loaded = load_config(arguments.config, arguments.overrides)
    from pipelines.console import is_main_process
    from pipelines.jobs.train import train
    from pipelines.runs.run import RunFolder
    from pipelines.training.warm_start import WarmStart

    if arguments.reopen and arguments.earlier is None:
        raise UsageError("--reopen lets the gates of an earlier run choose anew: name it with --from")
    warm = WarmStart(RunFolder.open(arguments.earlier), arguments.reopen) if arguments.earlier else None
    run = train(loaded, arguments.folder, resume=arguments.resume, warm_start=warm, command=arguments.argv)
    if not is_main_process():
        return
    evaluation = run.load_evaluation() if run.evaluation.exists() else None
    if arguments.json:
        print(as_json({"run": str(run.path), "selection": run.load_selection(), "evaluation": evaluation}))
        return
    if evaluation is not None:
        print(format_evaluation(evaluation))
    print(run.path)


def run_tune(arguments: argparse.Namespace) -> None:
    """``ranker tune``."""
    from pipelines.config.config import load_config
    from pipelines.tuning.workers import format_summary, summarize, tune

    loaded = load_config(arguments.config)
    study = tune(loaded, arguments.study, arguments.trials, arguments.workers, arguments.timeout)
    summary = summarize(study)
    print(as_json(summary) if arguments.json else format_summary(summary))
    if summary["best"] is None:
        raise RankerError(f"{arguments.study}: no trial converged; see its trials/*.log, or give it more --trials")
    if not arguments.json:
        print(study.best_file)


def run_evaluate(arguments: argparse.Namespace) -> None:
    """``ranker evaluate``."""
    from pipelines.evaluation.evaluate import evaluate_all
    from pipelines.evaluation.format import format_evaluation
    from pipelines.evaluation.sources import resolve_scorers

    evaluation = evaluate_all(resolve_scorers(arguments.source), arguments.logs, arguments.slices)
    print(as_json(evaluation) if arguments.json else format_evaluation(evaluation))


def run_compare(arguments: argparse.Namespace) -> None:
    """``ranker compare``."""
    from pipelines.evaluation.compare import compare
    from pipelines.evaluation.format import format_comparison
    from pipelines.evaluation.sources import resolve_scorers

    comparison = compare(resolve_scorers(arguments.a), resolve_scorers(arguments.b), arguments.logs)
    comparison = {"a": str(arguments.a), "b": str(arguments.b), **comparison}
    print(as_json(comparison) if arguments.json else format_comparison(comparison))


def run_report(arguments: argparse.Namespace) -> None:
    """``ranker report``."""
    from pipelines.report.page import write_report

    print(write_report(arguments.source, arguments.out))


def run_freeze(arguments: argparse.Namespace) -> None:
    """``ranker freeze``."""
    from pipelines.jobs.freeze import freeze_run

    freeze_run(arguments.source, arguments.out)
    print(arguments.out)


def run_publish(arguments: argparse.Namespace) -> None:
    """``ranker publish``."""
    from pipelines.jobs.publish import publish

    name, version = publish(arguments.bundle, arguments.repository, arguments.name, arguments.keep)
    print(arguments.repository / name / str(version))


def run_daily(arguments: argparse.Namespace) -> None:
    """``ranker daily``."""
    from pipelines.config.config import load_config
    from pipelines.jobs.daily import daily

    loaded = load_config(arguments.config, arguments.overrides)
    day = arguments.day or datetime.now(UTC).date() - timedelta(days=1)
    done = daily(
        loaded,
        arguments.runs,
        arguments.repository,
        day,
        margin=arguments.margin,
        fresh=arguments.fresh,
        command=arguments.argv,
    )
    print(as_json(done) if arguments.json else arguments.repository / done["model"] / str(done["version"]))


def run_release(arguments: argparse.Namespace) -> None:
    """``ranker release``."""
    from pipelines.jobs.release import change_release

    given = {name: getattr(arguments, name) for name in ("version", "pinned", "canary", "shadow")}
    changes = {name: value for name, value in given.items() if value is not None}
    for name in ("canary", "shadow"):
        if getattr(arguments, f"no_{name}"):
            changes[name] = None
    print(as_json(change_release(arguments.repository, arguments.name, changes).to_json()))


def run_score(arguments: argparse.Namespace) -> None:
    """``ranker score``."""
    from pipelines.jobs.score import score_log
    from ranking.artifacts import bundle

    counts = score_log(bundle.load(arguments.bundle), arguments.logs, arguments.out, arguments.tasks)
    print(as_json({"out": str(arguments.out), **counts}))


def run_load(arguments: argparse.Namespace) -> None:
    """``ranker items load`` and ``ranker users load``."""
    from pipelines.jobs.load_features import load_features
    from ranking.artifacts import bundle

    if arguments.to is None:
        raise UsageError("name the store: --to redis://HOST:PORT/DB, or the variable RANKER_STORE")
    schema = bundle.load(arguments.bundle).schema
    model = schema.name if arguments.model is None else arguments.model
    place, prefix, ttl = arguments.to, arguments.prefix, arguments.ttl
    print(as_json(load_features(arguments.rows, arguments.owner, schema, model, place, prefix, ttl)))


def run_serve(arguments: argparse.Namespace) -> None:
    """``ranker serve``."""
    from service.main import serve
    from service.settings import load_settings

    given = {
        "repository": arguments.repository,
        "default_model": arguments.model,
        "backend": arguments.backend,
        "workers": arguments.workers,
        "threads": arguments.threads,
        "keys": arguments.keys,
        "no_keys": arguments.no_keys,
        "operations_port": arguments.operations_port,
        "log_format": arguments.log_format,
    }
    serve(load_settings(given, arguments.settings), arguments.host, arguments.port)


def run_new_key(arguments: argparse.Namespace) -> None:
    """``ranker keys new``."""
    from service.http.auth import key_file

    now = datetime.now(UTC).replace(microsecond=0)
    expires = None if arguments.days is None else now + timedelta(days=arguments.days)
    secret = key_file.create_key(arguments.file, arguments.name, tuple(arguments.scopes), expires)
    print(f"the key '{arguments.name}', which is shown only now ({arguments.file} holds its hash):", file=sys.stderr)
    print(secret)


def run_list_keys(arguments: argparse.Namespace) -> None:
    """``ranker keys list``."""
    from service.http.auth import key_file

    keys = [key_file.describe_key(key) for key in key_file.read_keys(arguments.file)]
    if arguments.json:
        print(as_json({"keys": keys}))
        return
    width = max([len(key["name"]) for key in keys], default=0)
    for key in keys:
        expiry = f"{'expired' if key['expired'] else 'expires'} {key['expires']}" if key["expires"] else "never expires"
        print(f"{key['name']:{width}}  {' '.join(key['scopes'])}  {expiry}")


def run_revoke_key(arguments: argparse.Namespace) -> None:
    """``ranker keys revoke``."""
    from service.http.auth import key_file

    key_file.revoke_key(arguments.file, arguments.name)


def run_bench(arguments: argparse.Namespace) -> None:
    """``ranker bench``."""
    from pipelines.bench.command import run

    print(run(arguments))


def as_json(data: dict[str, Any]) -> str:
    """A result for programs."""
    return json.dumps(data, indent=2)


COMMANDS: dict[str, Command] = {
    "demo": run_demo,
    "synthetic": run_synthetic,
    "kuairand": run_kuairand,
    "check": run_check,
    "train": run_train,
    "tune": run_tune,
    "evaluate": run_evaluate,
    "compare": run_compare,
    "report": run_report,
    "freeze": run_freeze,
    "publish": run_publish,
    "daily": run_daily,
    "release": run_release,
    "score": run_score,
    "load": run_load,
    "serve": run_serve,
    "new": run_new_key,
    "list": run_list_keys,
    "revoke": run_revoke_key,
    "bench": run_bench,
}
