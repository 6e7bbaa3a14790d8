from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import several_runs
from pipelines.config.config import Config
from pipelines.runs.run import RunFolder


@pytest.mark.nightly(short="test_distilled_model_has_a_group_as_teachers")
def test_table_compares_means_and_distilled_models_with_single_runs(
    config: Config,
    run: RunFolder,
    run_of: Callable[[str], RunFolder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Here each group has one model twice, so that its mean changes nothing, and so has its student."""
    work, models = tmp_path / "work", (run, run_of("softmax"))

    def copied(_: Config, folder: Path, __: int) -> RunFolder:
        kind, _, number = folder.name.rpartition("-")
        group = int(number) // 2 if kind == "run" else int(number) % 2
        return RunFolder(shutil.copytree(models[group].path, folder))

    monkeypatch.setattr(several_runs, "trained", copied)
    file = tmp_path / "ranker.toml"
    config.write(file)
    monkeypatch.setattr(sys, "argv", ["several_runs", str(file), "--work", str(work), "--groups", "2", "--size", "2"])
    several_runs.main()
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("| task | metric | one run | mean | distilled |")
    click = [row for row in rows if row.startswith("| click | auc |")]
    assert len(click) == 1
    assert click[0].endswith("| +0.0000 ± 0.0000 | +0.0000 ± 0.0000 |")


def test_distilled_model_has_a_group_as_teachers(
    config: Config, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = []

    def record(taught: Config, folder: Path, seed: int) -> RunFolder:
        trainings.append((taught.training.teachers, folder, seed))
        return run

    monkeypatch.setattr(several_runs, "trained", record)
    groups = [[RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")], [RunFolder(tmp_path / "c")]]
    several_runs.distilled(config, groups, 3, tmp_path)
    assert trainings == [((tmp_path / "c",), tmp_path / "student-3", 103)]
