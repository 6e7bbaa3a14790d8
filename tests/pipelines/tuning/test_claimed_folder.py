"""Tests of folders whose trainings start from one configuration."""

from __future__ import annotations

import pytest

from pipelines.config.config import load_config
from pipelines.runs.run import RunFolder
from pipelines.tuning.claimed_folder import claim_folder
from ranking.errors import ConfigError, OutputError
from tests.pipelines.conftest import Shop


def test_claim_folder_keeps_the_configuration(shop: Shop) -> None:
    folder = shop.folder / "new" / "work"
    claim_folder(folder, shop.config())
    (folder / "run").mkdir()
    claim_folder(folder, shop.config())
    assert load_config(folder / "config.toml") == shop.config()


def test_claim_folder_of_another_configuration_names_the_setting_that_differs(shop: Shop) -> None:
    folder = shop.folder / "work"
    claim_folder(folder, shop.config())
    RunFolder.create(folder / "run", shop.config())
    with pytest.raises(ConfigError, match=r"another configuration: model\.experts was 3, now it is 4; name another"):
        claim_folder(folder, shop.config(model={"experts": 4}))
    with pytest.raises(ConfigError, match=r"tune\.model\.dropout was null, now it is a table; name"):
        claim_folder(folder, shop.config(tune={"model.dropout": [0.1]}))
    tasks = [task.model_copy(update={"weight": 2.0}) for task in shop.config().tasks]
    with pytest.raises(ConfigError, match=r"tasks\.click\.weight was 1\.0, now it is 2\.0; name"):
        claim_folder(folder, shop.config().model_copy(update={"tasks": tuple(tasks)}))


def test_claim_folder_with_other_content_changes_nothing(shop: Shop) -> None:
    folder = shop.folder / "work"
    folder.mkdir()
    (folder / "notes").touch()
    with pytest.raises(OutputError, match=r"work has other content, but no config\.toml: name another folder"):
        claim_folder(folder, shop.config())
    assert not (folder / "config.toml").exists()


@pytest.mark.parametrize("content", ["the-configuration-0.log", "trials/0.lock"])
def test_claim_folder_without_a_training_takes_a_corrected_configuration(shop: Shop, content: str) -> None:
    folder = shop.folder / "work"
    claim_folder(folder, shop.config())
    (folder / content).parent.mkdir(exist_ok=True)
    for name in (content, "journal"):
        (folder / name).touch()
    claim_folder(folder, shop.config())
    assert (folder / "journal").exists(), "another command may use it"
    claim_folder(folder, shop.config(model={"experts": 4}))
    assert load_config(folder / "config.toml") == shop.config(model={"experts": 4})
    assert not (folder / "journal").exists()


def test_claim_folder_of_a_run_changes_nothing(shop: Shop) -> None:
    run = RunFolder.create(shop.folder / "run", shop.config())
    before = set(run.path.iterdir())
    with pytest.raises(OutputError, match="run is a run folder: name another folder"):
        claim_folder(run.path, shop.config())
    assert set(run.path.iterdir()) == before


def test_claim_folder_that_cannot_be_created_names_it(shop: Shop) -> None:
    (shop.folder / "file").touch()
    with pytest.raises(OutputError, match="file"):
        claim_folder(shop.folder / "file" / "work", shop.config())
