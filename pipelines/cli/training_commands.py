"""Commands for training and evaluation: prepare, train, distill, advise, tune, evaluate, compare and report."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.cli.argument_types import database, location, positive_int, share
from pipelines.cli.command_group import CommandGroup
from pipelines.cli.options import (
    CONFIG,
    JSON,
    RUN,
    add_bad_row_limit,
    add_engine,
    add_overrides,
    bad_row_limit,
    chosen_engine,
    dump_json,
)
from pipelines.tuning.database_address import FORM
from ranking.errors import RankerError, UsageError

READ = "read the files of the log"

if TYPE_CHECKING:
    from pipelines.config.config import Config
    from pipelines.engines import Engine
    from pipelines.runs.run import RunFolder
    from pipelines.training.warm_start import WarmStart
    from pipelines.tuning.study import OpenStorage


def add_commands(commands: CommandGroup) -> None:
    """Add the commands."""
    prepare = commands.add(
        "prepare", "check a log and find its ids and ranges of numbers, for one or several trainings", _prepare_command
    )
    prepare.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    _add_run_folder(prepare)
    add_bad_row_limit(prepare)
    add_overrides(prepare)
    add_engine(prepare, READ)

    train = commands.add("train", "train a model until its gates converge, and evaluate it", _train_command)
    train.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    _add_run_folder(train)
    train.add_argument("--from", type=Path, dest="earlier", metavar="RUN", help="start from the weights of this run")
    train.add_argument("--reopen", action="store_true", help="with --from: let the gates select their experts again")
    train.add_argument(
        "--prepared",
        type=Path,
        metavar="RUN",
        help="use the preparation of 'ranker prepare' or of an earlier training of the same log and features",
    )
    add_bad_row_limit(train)
    add_overrides(train)
    add_engine(train, f"{READ} before the training, and score the rows of its evaluation")
    train.add_argument("--json", action="store_true", help=JSON)

    distill = commands.add(
        "distill", "train a model on the labels and on the mean prediction of earlier runs", _distill_command
    )
    distill.add_argument(
        "teachers",
        type=Path,
        nargs="+",
        metavar="RUN",
        help=f"{RUN}; the new run has the configuration of the first one",
    )
    _add_run_folder(distill)
    add_overrides(distill)
    distill.add_argument("--json", action="store_true", help=JSON)

    advise = commands.add(
        "advise", "measure which gate and experts of equal cost suit a log, without its test split", _advise_command
    )
    advise.add_argument(
        "source",
        type=Path,
        metavar="CONFIG|RUN",
        help="configuration; of a run, 'ranker evaluate' and its report then show the advice",
    )
    advise.add_argument(
        "--work", type=Path, required=True, metavar="DIR", help="folder of the trainings; finished ones are reused"
    )
    advise.add_argument(
        "--seeds", type=positive_int, default=3, metavar="N", help="trainings of each model, at least 2 (default: 3)"
    )
    add_overrides(advise)
    advise.add_argument("--json", action="store_true", help=JSON)

    tune = commands.add("tune", "search for better settings with one training per trial", _tune_command)
    tune.add_argument("config", type=Path, metavar="CONFIG", help=CONFIG)
    tune.add_argument(
        "--study", type=Path, required=True, metavar="DIR", help="folder of the study; an existing study is continued"
    )
    tune.add_argument(
        "--trials", type=positive_int, default=50, metavar="N", help="total number of trials (default: 50)"
    )
    tune.add_argument("--workers", type=positive_int, default=1, metavar="W", help="parallel trials (default: 1)")
    tune.add_argument(
        "--storage",
        type=database,
        metavar="URL",
        help=f"database of the trials, {FORM}, so that several machines share the study; each has its own --study DIR",
    )
    tune.add_argument("--timeout", type=positive_int, metavar="SECONDS", help="start no trial after this time")
    tune.add_argument("--json", action="store_true", help=JSON)

    evaluate = commands.add(
        "evaluate", "evaluate a run on its test split, or a run or bundle on a log", _evaluate_command
    )
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
    _add_users(evaluate)
    add_engine(evaluate)
    evaluate.add_argument(
        "--importance",
        action="store_true",
        help="measure how much worse the predictions become when the values of each feature are shuffled; for a run "
        "without --logs and --users, add the result to its evaluation.json and to its report, if it has one",
    )
    evaluate.add_argument("--json", action="store_true", help=JSON)

    compare = commands.add(
        "compare", "compare two runs or bundles on the same rows, with paired intervals", _compare_command
    )
    compare.add_argument("a", type=Path, metavar="A", help="run or bundle")
    compare.add_argument("b", type=Path, metavar="B", help="run or bundle")
    compare.add_argument(
        "--logs",
        type=location,
        help="Parquet file or folder with labels, a path or URI (default: the test split of A, or of B if A is a "
        "bundle)",
    )
    _add_users(compare)
    add_engine(compare)
    compare.add_argument("--json", action="store_true", help=JSON)

    report = commands.add("report", "write the report of a run as one self-contained HTML page", _report_command)
    report.add_argument("source", type=Path, metavar="RUN", help=RUN)
    report.add_argument("--out", type=Path, help="HTML file; an existing file is replaced (default: RUN/report.html)")


def _add_users(command: argparse.ArgumentParser) -> None:
    """Add the share of the users to evaluate."""
    command.add_argument(
        "--users",
        type=share,
        metavar="SHARE",
        help="evaluate only the rows of this share of the users, such as 0.01 (default: evaluation.users)",
    )


def _add_run_folder(command: argparse.ArgumentParser) -> None:
    """Add the run folder and what to do with a run that is in it."""
    command.add_argument("--run", type=Path, required=True, dest="folder", help="new folder for the run")
    existing = command.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="continue an interrupted run, if there is one")
    existing.add_argument(
        "--overwrite", action="store_true", help="replace an unfinished run in the folder; finished runs are kept"
    )


def _prepare_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config

    config = load_config(arguments.config, [*arguments.overrides, *bad_row_limit(arguments)])
    from pipelines.jobs.train import prepare_run

    options = {"resume": arguments.resume, "overwrite": arguments.overwrite, "engine": chosen_engine(arguments)}
    print(prepare_run(config, arguments.folder, **options).path)


def _train_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config

    # The configuration is validated before the slow import of PyTorch.
    config = load_config(arguments.config, [*arguments.overrides, *bad_row_limit(arguments)])
    from pipelines.runs.run import RunFolder
    from pipelines.training.warm_start import WarmStart

    if arguments.reopen and arguments.earlier is None:
        raise UsageError("--reopen applies to the gates of an earlier run: name the run with --from")
    if arguments.prepared is not None and arguments.earlier is not None:
        raise UsageError("--prepared and --from exclude each other: a training with --from adds the new ids of its log")
    warm = WarmStart(RunFolder.open(arguments.earlier), arguments.reopen) if arguments.earlier else None
    prepared = None if arguments.prepared is None else _prepared_run(arguments, config)
    _train(arguments, config, warm_start=warm, prepared=prepared, engine=chosen_engine(arguments))


def _prepared_run(arguments: argparse.Namespace, config: Config) -> RunFolder:
    """Return the run of ``--prepared``, after checking that the training can use it."""
    from pipelines.console import is_main_process
    from pipelines.data.reader import open_log
    from pipelines.runs.preparation import log_inputs, require_preparation
    from pipelines.runs.run import RunFolder

    run = RunFolder(arguments.prepared)
    if run.path.resolve() == arguments.folder.resolve():
        raise UsageError(f"--prepared {run.path} is the folder of the run itself: continue it with --resume")
    if config.model.gate.kind == "single_task":
        raise UsageError("single_task trains a run for each task, and each reads the log: train without --prepared")
    if is_main_process():
        inputs = log_inputs(open_log(config.logs, config.training_schema), config.logs)
        require_preparation(run, config, inputs)
    return run


def _distill_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config
    from pipelines.config.toml import inline_toml
    from pipelines.console import print_status
    from pipelines.runs.run import RunFolder

    runs = [RunFolder.open(path) for path in arguments.teachers]
    teachers = inline_toml([str(run.path.absolute()) for run in runs])
    config = load_config(runs[0].config, [*arguments.overrides, f"training.teachers={teachers}"])
    for run in runs:
        if run.load_config().training.seed == config.training.seed and not arguments.resume:
            print_status(f"the model starts from the seed of {run.path}; --set training.seed=N gives it another start")
    _train(arguments, config, prepared=runs[0])


def _train(
    arguments: argparse.Namespace,
    config: Config,
    warm_start: WarmStart | None = None,
    prepared: RunFolder | None = None,
    engine: Engine | None = None,
) -> None:
    """Train, and print the evaluation."""
    from pipelines.console import is_main_process
    from pipelines.evaluation.format import format_evaluation
    from pipelines.jobs.train import train

    run = train(
        config,
        arguments.folder,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        warm_start=warm_start,
        prepared=prepared,
        command=arguments.argv,
        baselines=True,
        engine=engine,
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


def _advise_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config
    from pipelines.runs.run import RunFolder

    if arguments.seeds < 2:
        raise UsageError("--seeds 1: an interval needs at least two trainings of each model")
    run = RunFolder.open(arguments.source) if arguments.source.is_dir() else None
    config = load_config(arguments.source if run is None else run.config, arguments.overrides)
    from pipelines.tuning.advice import advise, format_advice

    advice = advise(config, arguments.work, arguments.seeds)
    if run is not None and not arguments.overrides:
        _add_to_evaluation(run, "advice", advice)
    print(dump_json(advice) if arguments.json else format_advice(advice))


def _tune_command(arguments: argparse.Namespace) -> None:
    from pipelines.config.config import load_config
    from pipelines.tuning.storage import FolderStorage
    from pipelines.tuning.workers import format_summary, summarize, tune

    config = load_config(arguments.config)
    open_storage: OpenStorage = FolderStorage
    if arguments.storage is not None:
        from pipelines.tuning.database import DatabaseStorage

        open_storage = partial(DatabaseStorage, address=arguments.storage)
    study = tune(config, arguments.study, arguments.trials, arguments.workers, arguments.timeout, open_storage)
    summary = summarize(study)
    print(dump_json(summary) if arguments.json else format_summary(summary))
    if summary["best"] is None:
        raise RankerError(
            f"{arguments.study}: no trial converged; see trials/*.log in this folder, or increase --trials"
        )
    if not arguments.json:
        print(study.best_file)


def _evaluate_command(arguments: argparse.Namespace) -> None:
    from pipelines.evaluation.evaluate import evaluate_all
    from pipelines.evaluation.format import format_evaluation
    from pipelines.evaluation.sources import resolve_scorers
    from pipelines.runs.run import RunFolder

    evaluation = evaluate_all(
        resolve_scorers(arguments.source),
        arguments.logs,
        arguments.slices,
        arguments.users,
        baselines=True,
        importance=arguments.importance,
        engine=chosen_engine(arguments),
    )
    run = RunFolder(arguments.source)
    if arguments.logs is None and run.evaluation.exists():
        evaluation |= {key: part for key, part in run.load_evaluation().items() if key == "advice"}
    print(dump_json(evaluation) if arguments.json else format_evaluation(evaluation))
    if arguments.importance and arguments.logs is None and arguments.users is None:  # the rows of the evaluation
        _add_to_evaluation(run, "importance", evaluation["importance"])


def _add_to_evaluation(run: RunFolder, key: str, part: dict[str, Any]) -> None:
    """Set one entry of the evaluation of a run, also in its report if it has one."""
    from pipelines.report.page import write_report

    run.add_to_evaluation(key, part)
    if run.report.exists():
        write_report(run.path)


def _compare_command(arguments: argparse.Namespace) -> None:
    from pipelines.evaluation.compare import compare
    from pipelines.evaluation.format import format_comparison
    from pipelines.evaluation.sources import resolve_scorers

    comparison = compare(
        resolve_scorers(arguments.a),
        resolve_scorers(arguments.b),
        arguments.logs,
        arguments.users,
        baselines=True,
        engine=chosen_engine(arguments),
    )
    comparison = {"a": str(arguments.a), "b": str(arguments.b), **comparison}
    print(dump_json(comparison) if arguments.json else format_comparison(comparison))


def _report_command(arguments: argparse.Namespace) -> None:
    from pipelines.report.page import write_report

    print(write_report(arguments.source, arguments.out))
