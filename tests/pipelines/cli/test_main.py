from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from pipelines.cli.main import SHELLS, main
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.metrics.verdict import verdict
from tests.conftest import Once
from tests.pipelines.conftest import Shop
from tests.support.ports import occupied_port


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def ranker(*argv: object) -> Outcome:
    """Run ``ranker`` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in argv])
    return Outcome(code, out.getvalue(), err.getvalue())


class Workflow(NamedTuple):
    """Folder of the workflow, and the outcome of each of its commands."""

    folder: Path
    commands: dict[str, Outcome]


COMMANDS = ["demo", "logs", "check", "train", "evaluate", "compare", "report", "freeze", "publish", "score"]
ROWS = 2_000
SMALL = ["model.experts=3", "model.expert_layers=[8]", "model.tower_layers=[4]", "evaluation.bootstrap=20"]
SMALL += ["evaluation.baselines=['popularity', 'user_mean']"]


def run_workflow(folder: Path) -> None:
    """Run the workflow of the README in a folder: logs, check, train, evaluate, freeze, publish, score."""
    folder.mkdir()
    logs, run, bundle, scores = (folder / name for name in ("logs", "run", "bundle", "scores.parquet"))
    sets = [part for setting in SMALL for part in ("--set", setting)]
    day = logs / "log" / "date=2026-01-10"
    commands = {
        "logs": ranker("logs", "synthetic", "--out", logs, "--rows", ROWS, "--seed", "1"),
        "check": ranker("check", logs / "ranker.toml"),
        "check --json": ranker("check", logs / "ranker.toml", "--json"),
        "train": ranker("train", logs / "ranker.toml", "--run", run, *sets),
        "evaluate": ranker("evaluate", run),
        "evaluate --json": ranker("evaluate", run, "--json"),
        "report": ranker("report", run, "--out", folder / "report.html"),
        "freeze": ranker("freeze", run, "--out", bundle),
        "evaluate --slice": ranker("evaluate", run, "--slice", "surface", "--slice", "new_user"),
        "evaluate run on its log": ranker("evaluate", run, "--logs", logs / "log", "--json"),
        "evaluate bundle on the same log": ranker("evaluate", bundle, "--logs", logs / "log", "--json"),
        "compare": ranker("compare", run, bundle),
        "compare --json": ranker("compare", bundle, run, "--logs", day, "--json"),
        "publish": ranker("publish", bundle, folder / "repository"),
        "publish --name": ranker("publish", bundle, folder / "repository", "--name", "trial"),
        "score": ranker("score", bundle, "--logs", day, "--out", scores, "--tasks", "like", "click"),
    }
    (folder / "commands.json").write_text(json.dumps(commands))


@pytest.fixture(scope="session")
def workflow(once: Once) -> Workflow:
    """The workflow of the README and the outcomes of its commands; read only."""
    folder = once("workflow", run_workflow)
    outcomes = json.loads((folder / "commands.json").read_text())
    return Workflow(folder, {name: Outcome(*outcome) for name, outcome in outcomes.items()})


# Workflow.


def test_every_command_of_the_workflow_succeeds(workflow: Workflow) -> None:
    assert {
        name: (outcome.code, outcome.err[-300:]) for name, outcome in workflow.commands.items() if outcome.code
    } == {}


def test_logs_prints_the_path_of_the_configuration(workflow: Workflow) -> None:
    assert workflow.commands["logs"].out == f"{workflow.folder}/logs/ranker.toml\n"
    assert (workflow.folder / "logs" / "ranker.toml").is_file()


def test_check_prints_the_profile_to_stdout_and_progress_to_stderr(workflow: Workflow) -> None:
    _, out, err = workflow.commands["check"]
    assert out.startswith("rows: train ")
    assert "bad rows dropped: 0" in out
    assert f"reading the log: {ROWS:,} rows in " in err
    assert "reading the log" not in out


def test_check_json_prints_the_profile(workflow: Workflow) -> None:
    data = json.loads(workflow.commands["check --json"].out)
    assert sum(data["rows"].values()) == ROWS
    assert data["bad"] == {}
    assert 0.3 < data["labels"]["train"]["click"]["mean"] < 0.5


def test_check_suggest_prints_counters_after_the_profile(
    workflow: Workflow, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(workflow.folder / "logs" / "ranker.toml")
    assert main(["check", config, "--suggest", "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["suggestions"]
    assert main(["check", config, "--suggest"]) == 0
    profile, _, suggestions = capsys.readouterr().out.partition("suggested counters for ranker.toml:\n")
    assert profile.startswith("rows: train ")
    counters = tomllib.loads(suggestions)["counters"]
    assert counters[0] == {key: first[key] for key in ("of", "labels")}
    declared = [counter["of"] for counter in tomllib.loads(Path(config).read_text())["counters"]]
    assert declared
    assert not any(counter["of"] in declared for counter in counters)


def test_check_uses_overrides_and_checks_the_search_space(
    workflow: Workflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = workflow.folder / "logs" / "ranker.toml"
    assert main(["check", str(config), "--set", "training.batch_size=0"]) == 1
    assert "training.batch_size: " in capsys.readouterr().err
    tuned = tmp_path / "ranker.toml"
    tuned.write_text(f'{config.read_text()}\n[tune]\n"training.bacth_size" = {{ choices = [64] }}\n')
    assert main(["check", str(tuned)]) == 1
    assert 'tune."training.bacth_size": 64 is not a valid value: ' in capsys.readouterr().err


def test_train_prints_evaluation_and_run_to_stdout_and_progress_to_stderr(workflow: Workflow) -> None:
    _, out, err = workflow.commands["train"]
    lines = out.splitlines()
    assert lines[0] == verdict(RunFolder.open(workflow.folder / "run").load_evaluation()["baselines"])[0]
    assert any(" rows; 95 % intervals over " in line for line in lines)
    assert lines[-1] == f"{workflow.folder}/run"
    assert any(line.startswith("click") for line in lines)
    assert "the gates selected" in err
    assert "the gates selected" not in out


def test_train_applies_set_overrides(workflow: Workflow) -> None:
    config = RunFolder.open(workflow.folder / "run").load_config()
    assert config.model.experts == 3
    assert config.evaluation.bootstrap == 20


def test_evaluate_json_equals_the_stored_evaluation(workflow: Workflow) -> None:
    stored = json.loads((workflow.folder / "run" / "evaluation.json").read_text())
    assert json.loads(workflow.commands["evaluate --json"].out) == stored
    assert f"\n{stored['rows']:,} rows; 95 % intervals over " in workflow.commands["evaluate"].out


def test_evaluate_importance_prints_it_and_adds_it_to_the_run(
    shared_shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = train(shared_shop.config(), tmp_path / "run").path
    before = json.loads((run / "evaluation.json").read_text())
    assert main(["report", str(run)]) == 0
    assert "The importance of the features was not measured" in (run / "report.html").read_text()
    assert main(["evaluate", str(run), "--importance"]) == 0
    assert "The importance of the features was not measured" not in (run / "report.html").read_text()
    assert "permutation importance: drop in AUC or rise in RMSE" in capsys.readouterr().out
    stored = json.loads((run / "evaluation.json").read_text())
    importance = stored.pop("importance")
    assert stored == before
    assert {entry["name"] for entry in importance["entries"]} >= {"user_id", "item_id", "tab"}
    for other_rows in (["--logs", str(shared_shop.log)], ["--users", "0.7"]):
        assert main(["evaluate", str(run), "--importance", *other_rows]) == 0
        assert json.loads((run / "evaluation.json").read_text())["importance"] == importance


def test_evaluate_of_bundle_equals_its_run(workflow: Workflow) -> None:
    dense = json.loads(workflow.commands["evaluate run on its log"].out)
    frozen = json.loads(workflow.commands["evaluate bundle on the same log"].out)
    assert frozen["rows"] == dense["rows"]
    assert frozen["tasks"]["click"]["auc"] == pytest.approx(dense["tasks"]["click"]["auc"], abs=1e-4)


def test_evaluate_slice_prints_the_requested_slices(workflow: Workflow) -> None:
    out = workflow.commands["evaluate --slice"].out
    assert "by surface: AUC of binary tasks" in out
    assert "by new_user: AUC of binary tasks" in out


def test_compare_prints_both_models_and_their_metrics(workflow: Workflow) -> None:
    lines = workflow.commands["compare"].out.splitlines()
    assert lines[:2] == [f"A  {workflow.folder}/run", f"B  {workflow.folder}/bundle"]
    assert any(line.split()[:2] == ["click", "auc"] for line in lines)


def test_compare_json_prints_metric_differences(workflow: Workflow) -> None:
    data = json.loads(workflow.commands["compare --json"].out)
    assert (data["a"], data["b"]) == (f"{workflow.folder}/bundle", f"{workflow.folder}/run")
    auc = data["tasks"]["click"]["measures"]["auc"]
    assert set(auc) == {"a", "b", "difference", "interval", "better"}
    assert auc["difference"] == pytest.approx(0.0, abs=1e-4)


def test_freeze_prints_the_bundle_to_stdout_and_the_verification_to_stderr(workflow: Workflow) -> None:
    _, out, err = workflow.commands["freeze"]
    assert out == f"{workflow.folder}/bundle\n"
    assert "frozen and dense scores agree on " in err


def test_report_prints_the_path_of_a_page_with_the_command(workflow: Workflow) -> None:
    page = workflow.folder / "report.html"
    assert workflow.commands["report"].out == f"{page}\n"
    assert f"ranker train {workflow.folder / 'logs' / 'ranker.toml'}" in page.read_text()


def test_publish_prints_the_folder_of_the_version(workflow: Workflow) -> None:
    assert workflow.commands["publish"].out == f"{workflow.folder}/repository/feed/1\n"
    assert workflow.commands["publish --name"].out == f"{workflow.folder}/repository/trial/1\n"
    assert (workflow.folder / "repository" / "feed" / "1" / "manifest.json").is_file()


def test_score_prints_the_number_of_scored_and_bad_rows(workflow: Workflow) -> None:
    data = json.loads(workflow.commands["score"].out)
    scored = pq.read_table(workflow.folder / "scores.parquet")
    counts = {"scored": scored.num_rows, "bad": 0, "unseen_users": 0, "unseen_items": 0}
    assert data == {"out": f"{workflow.folder}/scores.parquet", **counts}
    assert scored.column_names == ["user_id", "item_id", "time", "like", "click", "score"]


# Gates.


def test_gate_kind_is_set_with_set_and_shown_by_train_and_evaluate(shared_shop: Shop, tmp_path: Path) -> None:
    sets = ["--set", "model.gate.kind=softmax", "--set", "model.gate.per_example=true"]
    trained = ranker("train", shared_shop.write_config(), "--run", tmp_path / "run", *sets)
    assert trained.code == 0, trained.err
    evaluated = ranker("evaluate", tmp_path / "run")
    assert evaluated.code == 0
    assert trained.out == f"{evaluated.out}{tmp_path}/run\n"
    assert evaluated.out.split("\n\n")[-1].startswith("softmax, per example: ")


def test_unknown_gate_kind_is_a_one_line_error(workflow: Workflow, tmp_path: Path) -> None:
    config = workflow.folder / "logs" / "ranker.toml"
    code, out, err = ranker("train", config, "--run", tmp_path / "run", "--set", "model.gate.kind=softmx")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "model.gate: kind is 'softmx'; choose dselect_k, top_k, softmax" in err
    assert not (tmp_path / "run").exists()


def test_single_task_run_is_evaluated_as_a_whole_and_frozen_by_task(shared_shop: Shop, tmp_path: Path) -> None:
    config = shared_shop.config(model={"gate": {"kind": "single_task"}})
    config.write(tmp_path / "ranker.toml")
    trained = ranker("train", tmp_path / "ranker.toml", "--run", tmp_path / "run", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["selection"]["kind"] == "single_task"
    evaluated = ranker("evaluate", tmp_path / "run")
    verdict, binary, numbers, click, watch = evaluated.out.split("\n\n")
    tables = [[line.split()[0] for line in table.splitlines()] for table in (binary, numbers)]
    assert tables == [["20", "task", "click"], ["task", "watch"]]
    assert [line.split()[0] for line in verdict.splitlines()] == ["click:", "watch:"]
    assert {line.split()[0] for line in click.splitlines()[2:]} == {"click"}
    assert "watch" in {line.split()[0] for line in watch.splitlines()}
    code, out, err = ranker("freeze", tmp_path / "run", "--out", tmp_path / "bundle")
    assert (code, out) == (1, "")
    assert err.startswith(f"ranker: {tmp_path}/run contains an independent model for each task")
    assert err.count("\n") == 1
    assert ranker("freeze", tmp_path / "run" / "tasks" / "click", "--out", tmp_path / "bundle").code == 0


# JSON.


def test_train_json_prints_run_selection_and_evaluation(shared_shop: Shop, tmp_path: Path) -> None:
    outcome = ranker("train", shared_shop.write_config(), "--run", tmp_path / "run", "--json")
    assert outcome.code == 0
    data = json.loads(outcome.out)
    assert data["run"] == f"{tmp_path}/run"
    assert data["selection"] == json.loads((tmp_path / "run" / "selection.json").read_text())
    assert data["evaluation"] == json.loads((tmp_path / "run" / "evaluation.json").read_text())


# Errors exit with 1 and print one line that names the file or setting to stderr.


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("check {empty}/ranker.toml", "{empty}/ranker.toml: cannot be read"),
        ("train {empty}/ranker.toml --run {empty}/run", "{empty}/ranker.toml: cannot be read"),
        ("train {logs}/ranker.toml --run {empty}/run --set colour=1", "colour: unknown key"),
        ("train {logs}/ranker.toml --run {run}", "{run} exists and is never overwritten"),
        ("evaluate {bundle}", "{bundle} is a bundle, which does not contain a log: specify one with --logs"),
        ("evaluate {empty}", "{empty} is not a run folder"),
        ("compare {run} {empty}", "{empty} is not a run folder"),
        ("compare {bundle} {bundle}", "{bundle} is a bundle, which does not contain a log: specify one with --logs"),
        ("evaluate {run} --logs {empty}/none", "{empty}/none: no such log"),
        ("report {empty}", "{empty} is not a run folder"),
        ("report {bundle}", "{bundle} is not a run folder"),
        ("report {run} --out {empty}/none/report.html", "{empty}/none/report.html: cannot be written"),
        ("freeze {empty} --out {empty}/bundle", "{empty} is not a run folder"),
        ("freeze {run} --out {bundle}", "{bundle} exists"),
        ("publish {empty} {empty}/repository", "{empty} is not a bundle"),
        ("publish {bundle} {empty}/repository --name ../up", "name '../up'"),
        ("score {bundle} --logs {empty} --out {empty}/s.parquet", "{empty}: contains no Parquet file"),
        ("score {bundle} --logs {day} --out {empty}/s.parquet --tasks clack", "unknown task 'clack'"),
        ("score {empty} --logs {day} --out {empty}/s.parquet", "{empty} is not a bundle"),
        ("logs synthetic --out {logs}", "{logs} exists and is never overwritten"),
        ("logs kuairand --raw {empty} --out {empty}/out", "{empty}: no "),
        (
            "logs movielens --raw {empty} --out {empty}/out",
            "{empty}: no file u.data, ml-100k.inter, ratings.dat; --raw must name ",
        ),
        ("logs movielens --raw {empty}/none --out {empty}/out", "{empty}/none: there is no such folder or file"),
        ("logs movielens --raw {file} --out {empty}/out", "{file}: cannot be read as a zip file"),
        ("demo --dir {logs}", "{logs} exists"),
        ("check {file}", "{file}: is a Parquet file, not a configuration file; name the ranker.toml"),
        ("train {file} --run {empty}/run", "{file}: is a Parquet file, not a configuration file"),
        ("logs synthetic --out {file}/new", "{file} is a file, not a folder: name another path"),
        ("logs kuairand --raw {empty} --out {file}/new", "{file} is a file, not a folder"),
        ("logs movielens --raw {empty} --out {file}/new", "{file} is a file, not a folder"),
        ("demo --dir {file}/new", "{file} is a file, not a folder"),
        ("check {logs}/ranker.toml --quarantine {file}/new", "{file} is a file, not a folder"),
        ("train {logs}/ranker.toml --run {file}/new", "{file} is a file, not a folder"),
        ("train {logs}/ranker.toml --run {file}/new --resume", "{file} is a file, not a folder"),
        ("tune {logs}/ranker.toml --study {file}", "{file} is a file, not a folder"),
        ("report {run} --out {file}/new.html", "{file} is a file, not a folder"),
        ("freeze {run} --out {file}/new", "{file} is a file, not a folder"),
        ("publish {bundle} {file}", "{file} is a file, not a folder"),
        ("score {bundle} --logs {day} --out {file}/new", "{file} is a file, not a folder"),
        ("score {bundle} --logs {day} --out {empty}", "{empty}: cannot be written (it is a folder)"),
    ],
)
def test_failing_command_prints_one_line_and_exits_with_1(
    workflow: Workflow, tmp_path: Path, command: str, expected: str
) -> None:
    day = workflow.folder / "logs" / "log" / "date=2026-01-10"
    places = {"empty": tmp_path, "day": day, "file": day / "part-0.parquet"}
    places |= {name: workflow.folder / name for name in ("logs", "run", "bundle")}
    code, out, err = ranker(*(word.format(**places) for word in command.split()))
    assert code == 1
    assert out == ""
    assert err.startswith("ranker: ")
    assert err.count("\n") == 1
    assert expected.format(**places) in err
    assert list(tmp_path.iterdir()) == []


def test_failing_check_prints_the_profile_before_the_error(workflow: Workflow, tmp_path: Path) -> None:
    """The profile helps to find the cause."""
    logs = shutil.copytree(workflow.folder / "logs", tmp_path / "logs")
    shutil.rmtree(logs / "log" / "date=2026-01-09")
    code, out, err = ranker("check", logs / "ranker.toml")
    assert code == 1
    assert "validation 0" in out
    assert err.splitlines()[-1].startswith(f"ranker: {logs}/log: no row from 2026-01-09")


def test_freeze_of_unconverged_gate_is_rejected(workflow: Workflow, tmp_path: Path) -> None:
    run = shutil.copytree(workflow.folder / "run", tmp_path / "run")
    weights = load_file(run / "checkpoints" / "best.safetensors")
    weights["gate.z"].zero_()
    save_file(weights, run / "checkpoints" / "best.safetensors")
    code, out, err = ranker("freeze", run, "--out", tmp_path / "bundle")
    assert (code, out) == (1, "")
    assert err.startswith(f"ranker: {run}: the gate has not converged: task 'click' selector 0")
    assert not (tmp_path / "bundle").exists()


def test_keyboard_interrupt_prints_one_line(workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "read_bytes", interrupted)
    assert ranker("check", workflow.folder / "logs" / "ranker.toml") == (1, "", "ranker: interrupted\n")


# Quarantine.


def test_check_writes_bad_rows_to_the_quarantine_file(workflow: Workflow, tmp_path: Path) -> None:
    logs = shutil.copytree(workflow.folder / "logs", tmp_path / "logs")
    file = logs / "log" / "date=2026-01-03" / "part-0.parquet"
    table = pq.read_table(file, partitioning=None)
    clicks = table["click"].to_pylist()
    clicks[5] = 3
    index = table.column_names.index("click")
    pq.write_table(table.set_column(index, "click", [clicks]), file)
    outcome = ranker("check", logs / "ranker.toml", "--quarantine", tmp_path / "bad.jsonl")
    assert outcome.code == 0
    assert "1 × label 'click' is neither 0 nor 1" in outcome.out
    record = json.loads((tmp_path / "bad.jsonl").read_text())
    assert (record["file"], record["file_row"]) == (str(file), 5)


# Usage errors exit with 2.


@pytest.mark.parametrize(
    "command",
    [
        "",
        "fly",
        "completion",
        "completion powershell",
        "logs",
        "logs movies --out x",
        "logs synthetic",
        "logs synthetic --out x --rows 0",
        "logs synthetic --out x --rows 500",
        "logs synthetic --out x --rows many",
        "logs synthetic --out x --rows -5",
        "logs synthetic --out x --seed s",
        "logs kuairand --out x",
        "logs movielens --out x",
        "check",
        "check a b",
        "train ranker.toml",
        "train --run run",
        "train ranker.toml --run run --set",
        "evaluate",
        "evaluate run --slice",
        "compare run",
        "report",
        "freeze run",
        "publish bundle",
        "score bundle --logs log",
        "score bundle --logs log --out x --tasks",
        "serve",
        "counters apply log",
        "serve repository --port door",
    ],
)
def test_invalid_arguments_print_the_usage_and_exit_with_2(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(command.split())
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: ranker")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        ("check ranker.toml --run x", "usage: ranker check "),
        ("logs synthetic --out x --row 3000 y", "usage: ranker logs synthetic "),
        ("keys list keys.json extra", "usage: ranker keys list "),
    ],
)
def test_unknown_argument_prints_the_usage_of_its_command(
    argv: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(usage)


def test_help_of_every_command_prints_the_usage_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "",
        *COMMANDS,
        "serve",
        "completion",
        "logs synthetic",
        "logs kuairand",
        "logs movielens",
        "counters apply",
    ):
        with pytest.raises(SystemExit) as caught:
            main([*command.split(), "--help"])
        assert caught.value.code == 0, command
        assert capsys.readouterr().out.startswith(f"usage: ranker {command}".rstrip())


# Pipes.


def test_closed_stdout_exits_with_141_without_traceback() -> None:
    """Such as with ``ranker evaluate RUN --json | head -1``; this command starts faster."""
    command = [sys.executable, "-m", "pipelines.cli", "completion", "bash"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written
        err = process.stderr.read().decode()
    assert process.returncode == 128 + signal.SIGPIPE, "the code that a shell reports for SIGPIPE"
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_unknown_slice_is_a_usage_error(workflow: Workflow) -> None:
    code, out, err = ranker("evaluate", workflow.folder / "run", "--slice", "color")
    assert (code, out) == (2, "")
    assert err.startswith(f"ranker: {workflow.folder}/run has no slice 'color': choose from user_id, item_id, ")


# Object storage.


def test_run_and_bundle_can_be_used_after_push_and_pull(workflow: Workflow, location: str, tmp_path: Path) -> None:
    for name in ("run", "bundle"):
        source, copy = workflow.folder / name, tmp_path / name
        for words in (["push", source, f"{location}/{name}"], ["pull", f"{location}/{name}", copy]):
            code, out, err = ranker(*words)
            assert (code, err) == (0, "")
            assert json.loads(out)["files"] > 5
        assert {file.relative_to(copy) for file in copy.rglob("*")} == {
            file.relative_to(source) for file in source.rglob("*")
        }
    assert ranker("freeze", tmp_path / "run", "--out", tmp_path / "frozen")[0] == 0
    assert ranker("publish", tmp_path / "bundle", tmp_path / "repository")[0] == 0
    code, _, err = ranker("pull", f"{location}/run", tmp_path / "again", "--all")
    assert (code, err) == (2, "ranker: --all and --overwrite are for repositories only\n")


def test_push_of_an_unfinished_run_says_how_to_finish_it(workflow: Workflow, location: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((workflow.folder / "run" / "config.toml").read_bytes())
    code, _, err = ranker("push", tmp_path, location)
    assert code == 1
    assert err.startswith(f"ranker: {tmp_path}: training has not finished; continue with")


def test_push_and_pull_print_the_releases(workflow: Workflow, location: str, tmp_path: Path) -> None:
    repository, copy = workflow.folder / "repository", tmp_path / "copy"
    releases = {"feed": {"version": 1}, "trial": {"version": 1}}
    code, out, err = ranker("push", repository, location)
    assert (code, json.loads(out)) == (0, releases)
    assert f"copied version 1 of trial to {location}" in err
    code, out, err = ranker("pull", location, copy, "--all")
    assert (code, json.loads(out)) == (0, releases)
    assert f"copied version 1 of trial from {location}" in err
    code, out, err = ranker("pull", f"{location}/none", tmp_path / "none")
    assert (code, json.loads(out), err) == (0, {}, f"{location}/none holds no repository, run or bundle\n")
    assert (
        ranker(
            "score",
            copy / "feed" / "1",
            "--logs",
            workflow.folder / "logs" / "log" / "date=2026-01-10",
            "--out",
            tmp_path / "scores.parquet",
        )[0]
        == 0
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["pull", "s3://nowhere/models", "copy"],
            1,
            "s3://nowhere/models cannot be accessed (The specified bucket does",
        ),
        (["serve", "copy", "--remote", "s3://nowhere/m"], 1, "s3://nowhere/m cannot be accessed (The specified bucket"),
        (["serve", "copy", "--remote", "ftp://a/b"], 1, "remote: is not a location in object storage: write s3://"),
    ],
)
def test_wrong_location_is_reported_in_one_line(
    arguments: list[str], code: int, message: str, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = ranker(*arguments)
    assert (status, out) == (code, "")
    assert message in err
    assert err.count("\n") <= 2


# Serve.


@pytest.mark.parametrize("exists", [True, False])
def test_serve_of_empty_repository_names_the_publish_command(tmp_path: Path, exists: bool) -> None:
    repository = tmp_path / "repository"
    if exists:
        repository.mkdir()
    code, out, err = ranker("serve", repository)
    assert (code, out) == (1, "")
    assert err.startswith("ranker: ")
    assert err.count("\n") == 1
    assert str(repository) in err
    assert "ranker publish" in err


def test_commands_without_training_work_without_torchrec(workflow: Workflow, tmp_path: Path) -> None:
    """Without TorchRec, scoring works and training names the packages to install."""
    script = """
import sys
sys.modules["torchrec"] = None
from pipelines.cli.main import main
folder, out = sys.argv[1:]
day = f"{folder}/logs/log/date=2026-01-10"
assert main(["score", f"{folder}/bundle", "--logs", day, "--out", f"{out}/scores.parquet"]) == 0
assert main(["publish", f"{folder}/bundle", f"{out}/repository"]) == 0
assert "sklearn" not in sys.modules
assert main(["evaluate", f"{folder}/bundle", "--logs", day]) == 0
assert main(["serve", f"{out}/empty"]) == 1
sys.exit(main(["freeze", f"{folder}/run", "--out", f"{out}/bundle"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script, workflow.folder, tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ranker: this command needs torchrec")
    assert "requirements/train.lock" in last
    assert pq.read_table(tmp_path / "scores.parquet").num_rows > 0


def test_commands_that_only_read_logs_do_not_import_pytorch(logs: Path, tmp_path: Path) -> None:
    """They would take seconds longer to start."""
    script = """
import sys
sys.modules["torch"] = None
from pipelines.cli.main import main
logs, file = sys.argv[1:]
assert main(["init", f"{logs}/log", "--out", file]) == 0
assert main(["check", file]) == 0
"""
    command = [sys.executable, "-c", script, logs, tmp_path / "ranker.toml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Serve listeners.


def test_serve_on_occupied_port_is_a_one_line_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with occupied_port() as port:
        assert main(["serve", str(repository), "--port", str(port)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ranker: ")]
    assert f"127.0.0.1:{port} cannot be listened on" in line
    assert "choose another --port" in line


def test_serve_on_invalid_port_is_a_usage_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", str(repository), "--port", "99999"])
    assert stopped.value.code == 2
    assert "'99999' is not a port" in capsys.readouterr().err


def test_malformed_override_is_a_usage_error(logs: Path, tmp_path: Path) -> None:
    assert main(["train", str(logs / "ranker.toml"), "--run", str(tmp_path / "run"), "--set", "training.epochs"]) == 2


def test_check_reports_ids_of_two_types(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(logs, tmp_path / "logs")
    first_day = tmp_path / "logs" / "log" / "date=2026-01-01" / "part-0.parquet"
    table = pq.read_table(first_day)
    numbers = pa.array(range(table.num_rows), pa.int64())
    pq.write_table(table.set_column(table.column_names.index("surface"), "surface", numbers), first_day)
    assert main(["check", str(tmp_path / "logs" / "ranker.toml")]) == 1
    assert "date=2026-01-02/part-0.parquet: column 'surface' holds string, but int64 in " in capsys.readouterr().err


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"ranker {version('dselect-ranker')}\n"


# Completion.


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_of_every_shell_contains_commands_and_options(shell: str) -> None:
    code, out, err = ranker("completion", shell)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("evaluate", "synthetic", "quarantine"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["che"], ["check"]),
        (["logs", "syn"], ["synthetic"]),
        (["serve", "repository", "--ba"], ["--backend"]),
        (["counters", "app"], ["apply"]),
        (["serve", "repository", "--backend", "o"], ["onnxruntime"]),
        (["check", "rank"], ["ranker.toml"]),
    ],
)
def test_bash_completes_commands_options_choices_and_files(
    tmp_path: Path, words: list[str], expected: list[str]
) -> None:
    (tmp_path / "ranker.toml").touch()
    (tmp_path / "completion.bash").write_text(ranker("completion", "bash").out)
    complete = (
        'source ./completion.bash; COMP_WORDS=(ranker "$@"); COMP_CWORD=$#; _shtab_ranker; echo "${COMPREPLY[@]}"'
    )
    result = subprocess.run(
        ["bash", "-c", complete, "bash", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == expected
