"""The command line ``ranker``: parses, calls, prints. Each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ranking.errors import RankerError, UsageError

TRAINING_EXTRAS = ("torchrec", "fbgemm_gpu", "sklearn", "optuna")

CONFIG = "the ranker.toml"
BUNDLE = "folder that 'ranker freeze' wrote, or a published version"
NEW_FOLDER = "new folder"
JSON = "print the result as JSON"

Command = Callable[[argparse.Namespace], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 if it did what was asked, 1 if it failed, 2 (through argparse) if it was used wrongly.
    """
    arguments = parser().parse_args(argv)
    arguments.command = ["ranker", *(sys.argv[1:] if argv is None else argv)]
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the result has enough, such as head; nothing more can be written there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RankerError as error:
        print(f"ranker: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_EXTRAS:
            raise
        how = "pip install --no-deps -r requirements/train.lock (CPU) or requirements/cuda.lock"
        print(f"ranker: this command needs {error.name}, which serving does without: {how}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ranker: interrupted", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    top = argparse.ArgumentParser(prog="ranker", description="Train, freeze, publish and serve a DSelect-k ranker.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str, within: Any = commands) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = within.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    demo = command("demo", run_demo, "the whole loop on generated logs, up to one ranked answer")
    demo.add_argument("--dir", type=Path, default=Path("demo"), help="new folder for all files (default: demo)")

    logs = commands.add_parser("logs", help="write a log, its side tables and a ranker.toml")
    sources = logs.add_subparsers(title="sources", required=True, metavar="SOURCE")
    synthetic = command("synthetic", run_synthetic, "a generated log whose true probabilities are known", sources)
    synthetic.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)
    synthetic.add_argument("--rows", type=positive, default=200_000, help="impressions (default: 200000)")
    synthetic.add_argument("--seed", type=int, default=0, help="the same seed writes the same log (default: 0)")
    synthetic.add_argument(
        "--conflict", type=share, help="how far tasks disagree, from 0 to 1 (default: each mixes its own experts)"
    )
    kuairand = command("kuairand", run_kuairand, "KuaiRand's original files (CSV or Parquet)", sources)
    kuairand.add_argument("--raw", type=Path, required=True, help="folder of the original files")
    kuairand.add_argument("--out", type=Path, required=True, help=NEW_FOLDER)

    check = command("check", run_check, "validate a configuration and its log")
    check.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    check.add_argument("--quarantine", type=Path, help="write bad rows there, a JSON object a line")
    check.add_argument("--json", action="store_true", help=JSON)

    train = command("train", run_train, "train, converge and evaluate")
    train.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    train.add_argument("--run", type=Path, required=True, dest="folder", help="new folder for the run")
    train.add_argument("--resume", action="store_true", help="go on with an interrupted run, if there is one")
    train.add_argument("--from", type=Path, dest="earlier", metavar="RUN", help="go on from the weights of this run")
    train.add_argument("--reopen", action="store_true", help="with --from: let the gates choose their experts anew")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a setting, such as training.epochs=3; may be repeated",
    )
    train.add_argument("--json", action="store_true", help=JSON)

    tune = command("tune", run_tune, "search for better settings, each trial a training")
    tune.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    tune.add_argument(
        "--study", type=Path, required=True, metavar="DIR", help="folder of the study; one that is there goes on"
    )
    tune.add_argument("--trials", type=positive, default=50, metavar="N", help="in total (default: 50)")
    tune.add_argument("--workers", type=positive, default=1, metavar="W", help="trials at a time (default: 1)")
    tune.add_argument("--timeout", type=positive, metavar="SECONDS", help="begin no trial after so long")
    tune.add_argument("--json", action="store_true", help=JSON)

    evaluate = command("evaluate", run_evaluate, "measure a run on its test split, or a run or bundle on a log")
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

    compare = command("compare", run_compare, "measure two runs or bundles on the same rows, with paired intervals")
    compare.add_argument("a", type=Path, metavar="A", help="run or bundle")
    compare.add_argument("b", type=Path, metavar="B", help="run or bundle")
    compare.add_argument(
        "--logs", type=log_place, help="Parquet with labels; default: A's test split (B's if A is a bundle)"
    )
    compare.add_argument("--json", action="store_true", help=JSON)

    report = command("report", run_report, "write a run's report, one self-contained HTML page")
    report.add_argument("source", type=Path, metavar="RUN", help="folder that 'ranker train' wrote")
    report.add_argument("--out", type=Path, help="HTML file, replaced if it is there (default: RUN/report.html)")

    freeze = command("freeze", run_freeze, "write the bundle of a converged run")
    freeze.add_argument("source", type=Path, metavar="RUN", help="folder that 'ranker train' wrote")
    freeze.add_argument("--out", type=Path, required=True, metavar="BUNDLE", help=NEW_FOLDER)

    publish = command("publish", run_publish, "make a bundle the current version in a repository")
    publish.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    publish.add_argument("repository", type=Path, metavar="REPOSITORY", help="folder of published models")
    publish.add_argument("--name", help="model name (default: the bundle's)")

    score = command("score", run_score, "score a log with a bundle")
    score.add_argument("bundle", type=Path, metavar="BUNDLE", help=BUNDLE)
    score.add_argument(
        "--logs", type=log_place, required=True, help="Parquet file or folder, a path or URI; needs no labels"
    )
    score.add_argument("--out", type=Path, required=True, help="Parquet file, replaced once all rows are scored")
    score.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all")

    serve = command("serve", run_serve, "serve a repository over HTTP")
    serve.add_argument("repository", type=Path, metavar="REPOSITORY", help="folder of published models")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=port, default=8000, help="port to listen on (default: 8000)")
    serve.add_argument("--model", help="the model that answers /v1/rank (default: the only one)")
    return top


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number


def log_place(text: str) -> Path | str:
    """A path or a URI."""
    from pipelines.logs.places import place

    return place(text)


def port(text: str) -> int:
    """A TCP port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to 65535")
    return int(text)


def run_demo(arguments: argparse.Namespace) -> None:
    """``ranker demo``."""
    from pipelines.demo import demo

    demo(arguments.dir)


def run_synthetic(arguments: argparse.Namespace) -> None:
    """``ranker logs synthetic``."""
    from pipelines.logs.synthetic import generate

    generate(arguments.out, arguments.rows, arguments.seed, arguments.conflict)
    print(arguments.out / "ranker.toml")


def run_kuairand(arguments: argparse.Namespace) -> None:
    """``ranker logs kuairand``."""
    from pipelines.logs.kuairand import convert

    convert(arguments.raw, arguments.out)
    print(arguments.out / "ranker.toml")


def run_check(arguments: argparse.Namespace) -> None:
    """``ranker check``."""
    from pipelines import config
    from pipelines.logs.reader import LogReader, load_tables
    from pipelines.logs.survey import require_learnable, survey
    from ranking.fitting import EncoderFitter

    loaded = config.load(arguments.config)
    schema = loaded.log_schema
    reader = LogReader(loaded.logs.path, schema, load_tables(loaded.logs, schema))
    found = survey(reader, loaded.logs, schema, arguments.quarantine, on_train=EncoderFitter(schema).add)
    print(as_json(found.to_json()) if arguments.json else found.to_text())
    require_learnable(found, loaded)


def run_train(arguments: argparse.Namespace) -> None:
    """``ranker train``."""
    from pipelines import config
    from pipelines.evaluation.telling import table

    loaded = config.load(arguments.config, arguments.overrides)
    from pipelines.run_folder import RunFolder
    from pipelines.train import train
    from pipelines.training.warm_start import WarmStart

    if arguments.reopen and arguments.earlier is None:
        raise UsageError("--reopen lets the gates of an earlier run choose anew: name it with --from")
    warm = WarmStart(RunFolder.open(arguments.earlier), arguments.reopen) if arguments.earlier else None
    run = train(loaded, arguments.folder, resume=arguments.resume, warm=warm, command=arguments.command)
    if os.environ.get("RANK", "0") != "0":
        return  # of the ranks that torchrun starts, the first one tells
    evaluation = run.load_evaluation() if run.evaluation.exists() else None
    if arguments.json:
        print(as_json({"run": str(run.path), "selection": run.load_selection(), "evaluation": evaluation}))
        return
    if evaluation is not None:
        print(table(evaluation))
    print(run.path)


def run_tune(arguments: argparse.Namespace) -> None:
    """``ranker tune``."""
    from pipelines import config
    from pipelines.tuning.tune import summary, table, tune

    loaded = config.load(arguments.config)
    study = tune(loaded, arguments.study, arguments.trials, arguments.workers, arguments.timeout)
    found = summary(study)
    print(as_json(found) if arguments.json else table(found))
    if found["best"] is None:
        raise RankerError(f"{arguments.study}: no trial converged; see its trials/*.log, or give it more --trials")
    if not arguments.json:
        print(study.best_file)


def run_evaluate(arguments: argparse.Namespace) -> None:
    """``ranker evaluate``."""
    from pipelines.evaluation.measuring import evaluate_all
    from pipelines.evaluation.opening import open_sources
    from pipelines.evaluation.telling import table

    evaluation = evaluate_all(open_sources(arguments.source), arguments.logs, arguments.slices)
    print(as_json(evaluation) if arguments.json else table(evaluation))


def run_compare(arguments: argparse.Namespace) -> None:
    """``ranker compare``."""
    from pipelines.evaluation.comparing import compare
    from pipelines.evaluation.opening import open_sources
    from pipelines.evaluation.telling import comparison

    found = compare(open_sources(arguments.a), open_sources(arguments.b), arguments.logs)
    found = {"a": str(arguments.a), "b": str(arguments.b), **found}
    print(as_json(found) if arguments.json else comparison(found))


def run_report(arguments: argparse.Namespace) -> None:
    """``ranker report``."""
    from pipelines.report.page import write_report

    print(write_report(arguments.source, arguments.out))


def run_freeze(arguments: argparse.Namespace) -> None:
    """``ranker freeze``."""
    from pipelines.freezing import freeze_run

    freeze_run(arguments.source, arguments.out)
    print(arguments.out)


def run_publish(arguments: argparse.Namespace) -> None:
    """``ranker publish``."""
    from pipelines.publishing import publish

    name, version = publish(arguments.bundle, arguments.repository, arguments.name)
    print(arguments.repository / name / str(version))


def run_score(arguments: argparse.Namespace) -> None:
    """``ranker score``."""
    from pipelines.scoring import score_log
    from ranking import bundle

    counts = score_log(bundle.load(arguments.bundle), arguments.logs, arguments.out, arguments.tasks)
    print(as_json({"out": str(arguments.out), **counts}))


def run_serve(arguments: argparse.Namespace) -> None:
    """``ranker serve``."""
    from service.app import serve
    from service.settings import Settings

    serve(Settings(repository=arguments.repository, default_model=arguments.model), arguments.host, arguments.port)


def as_json(data: dict[str, Any]) -> str:
    """A result for programs."""
    return json.dumps(data, indent=2)


if __name__ == "__main__":
    sys.exit(main())
