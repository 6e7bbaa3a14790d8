"""Run folders: which are replaced with ``overwrite``, and which are never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.runs.run import RunFolder
from ranking.errors import OutputError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def unfinished(shop: Shop) -> RunFolder:
    """Return the folder of a run that failed in training."""
    run = RunFolder.create(shop.folder / "run", shop.config())
    run.encoder.mkdir()
    run.survey.write_text("{}")
    run.bad_batch(3, 0).write_text("batch")
    (run.path / ".encoder-x1").mkdir()
    return run


def names(run: RunFolder) -> set[str]:
    return {entry.name for entry in run.path.iterdir()}


def test_create_in_an_unfinished_run_names_the_options(shop: Shop) -> None:
    run = unfinished(shop)
    before = names(run)
    with pytest.raises(OutputError) as caught:
        RunFolder.create(run.path, shop.config())
    assert str(caught.value) == (
        f"{run.path} contains an unfinished run: continue it with --resume, replace it with --overwrite, "
        "or name another folder"
    )
    assert names(run) == before


def test_create_with_overwrite_replaces_an_unfinished_run(shop: Shop) -> None:
    run = unfinished(shop)
    corrected = shop.config(training={"seed": 7})
    RunFolder.create(run.path, corrected, overwrite=True)
    assert names(run) == {"config.toml", "checkpoints"}
    assert run.load_config() == corrected


def test_create_with_overwrite_replaces_a_run_that_was_interrupted_at_its_creation(shop: Shop) -> None:
    run = RunFolder(shop.folder / "run")
    run.checkpoints.mkdir(parents=True)
    run.config_draft.write_text("na")
    with pytest.raises(OutputError, match="contains an unfinished run"):
        RunFolder.create(run.path, shop.config())
    RunFolder.create(run.path, shop.config(), overwrite=True)
    assert names(run) == {"config.toml", "checkpoints"}


def test_create_with_overwrite_in_a_new_folder_creates_it(shop: Shop) -> None:
    assert RunFolder.create(shop.folder / "run", shop.config(), overwrite=True).config.exists()


def test_create_with_overwrite_keeps_a_finished_run(shop: Shop) -> None:
    run = unfinished(shop)
    run.selection.write_text("{}")
    before = names(run)
    with pytest.raises(OutputError, match="contains a finished run, which is never overwritten: name another folder"):
        RunFolder.create(run.path, shop.config(), overwrite=True)
    assert names(run) == before


@pytest.mark.parametrize("foreign", ["notes.txt", ".git", "my-model"])
def test_create_with_overwrite_keeps_a_run_with_foreign_files(shop: Shop, foreign: str) -> None:
    run = unfinished(shop)
    (run.path / foreign).mkdir()
    before = names(run)
    with pytest.raises(OutputError, match=f"{foreign} is not part of a run: move it away"):
        RunFolder.create(run.path, shop.config(), overwrite=True)
    assert names(run) == before


def test_create_with_overwrite_keeps_a_folder_that_is_not_a_run(shop: Shop) -> None:
    folder = shop.folder / "mine"
    folder.mkdir()
    (folder / "config.toml").write_text("a = 1")
    with pytest.raises(OutputError, match="exists and is never overwritten"):
        RunFolder.create(folder, shop.config(), overwrite=True)
    assert (folder / "config.toml").read_text() == "a = 1"


def test_create_with_overwrite_keeps_a_run_that_another_process_trains(shop: Shop) -> None:
    run = unfinished(shop)
    before = names(run)
    with run.lock(), pytest.raises(OutputError, match="another process is training in this folder"):
        RunFolder.create(run.path, shop.config(), overwrite=True)
    assert names(run) == before


def test_create_with_overwrite_does_not_follow_links(shop: Shop) -> None:
    run = unfinished(shop)
    outside = shop.folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep")
    (run.path / "tensorboard").symlink_to(outside)
    RunFolder.create(run.path, shop.config(), overwrite=True)
    assert (outside / "file").read_text() == "keep"


def test_resume_with_another_configuration_names_overwrite(shop: Shop) -> None:
    run = unfinished(shop)
    with pytest.raises(OutputError, match=r"another training\.seed.*replace an unfinished run with --overwrite"):
        RunFolder.resume(run.path, shop.config(training={"seed": 7}))
    assert RunFolder.resume(run.path, shop.config(logs={"max_bad_rows": 0.5})).path == run.path
