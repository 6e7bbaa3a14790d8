"""A training is prepared by one process or by the workers of an engine, and shares its preparation with others."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from pipelines.config.config import Config
from pipelines.data.reader import open_log
from pipelines.engines import run_in_processes
from pipelines.jobs.check import check
from pipelines.jobs.train import prepare_run, train
from pipelines.runs.preparation import log_inputs, require_preparation, share_folder, share_preparation
from pipelines.runs.run import RunFolder
from pipelines.training.warm_start import WarmStart
from ranking.errors import LogError, OutputError, RankerError, UsageError
from tests.conftest import Once
from tests.pipelines.conftest import FIRST_DAY, Shop
from tests.support.command import ranker

COUNTERS = [{"of": ["item_id"], "labels": ["click"], "delay": "1h"}]
HISTORIES = [{"of": "item_id", "label": "click", "max_length": 5, "name": "clicked"}]
BUCKETS = {"name": "price_band", "kind": "buckets", "owner": "item", "column": "price", "count": 4}
POSITION = {"name": "position", "kind": "numeric", "owner": "context", "training_only": True}


def from_last_to_first(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
    """An engine that returns the results in another order."""
    return [function(part) for part in reversed(parts)]


def write_log(shop: Shop) -> None:
    """Write several files in a folder, an empty file, bad rows, and repeated rows within and across files."""
    table = shop.table(1_000)
    table = table.append_column("position", pa.array([n % 7 for n in range(1_000)], pa.float64()))
    bad = shop.with_value(table.slice(100, 3), "price", 1, -1e300)
    shop.write(pa.concat_tables([table[:300], table[:20], bad]), "a/part-0.parquet", row_group_size=70)
    shop.write(pa.concat_tables([bad, table[250:600]]), "a/part-1.parquet")
    shop.write(table[:0], "b/part-0.parquet")
    shop.write(table[600:], "b/part-1.parquet")


def full_config(shop: Shop) -> Config:
    """Return a configuration with everything that a preparation computes."""
    features = [*shop.config().model_dump(exclude_none=True)["features"], BUCKETS, POSITION]
    model = {"side_tower": {"features": ["position"]}}
    return shop.config(features=features, counters=COUNTERS, histories=HISTORIES, model=model)


@pytest.fixture(scope="session")
def prepared(once: Once) -> RunFolder:
    """A log prepared for ``full_config``; read only."""

    def prepare(folder: Path) -> None:
        shop = Shop(folder)
        write_log(shop)
        prepare_run(full_config(shop), folder / "prepared")

    return RunFolder(once("prepared shop", prepare) / "prepared")


@pytest.fixture(scope="session")
def config(prepared: RunFolder) -> Config:
    """The configuration of ``prepared``; its log is read only."""
    return prepared.load_config()


@pytest.fixture
def copy(shop: Shop, prepared: RunFolder) -> RunFolder:
    """A copy of ``prepared`` that a test may change."""
    return RunFolder(shutil.copytree(prepared.path, shop.folder / "prepared"))


@pytest.fixture(scope="session")
def plain(once: Once) -> RunFolder:
    """A run on the same log with features of the log only, which is a preparation, too; read only."""

    def train_plain(folder: Path) -> None:
        shop = Shop(folder)
        write_log(shop)
        train(shop.config(), folder / "plain")

    return RunFolder(once("plain shop", train_plain) / "plain")


@pytest.fixture(scope="session")
def plain_config(plain: RunFolder) -> Config:
    """The configuration of ``plain``; its log is read only."""
    return plain.load_config()


def contents(run: RunFolder) -> dict[str, bytes]:
    """Return the files of a preparation, without the configuration and the command."""
    names = ("features", "counters", "encoder", "side_encoder", "survey.json", "index.parquet", "quarantine.jsonl")
    files = [file for name in names for file in [run.path / name, *(run.path / name).rglob("*")] if file.is_file()]
    return {str(file.relative_to(run.path)): file.read_bytes() for file in [*files, run.inputs]}


@pytest.mark.parametrize("engine", [map, from_last_to_first])
def test_workers_prepare_the_files_of_one_process(shop: Shop, config: Config, prepared: RunFolder, engine: Any) -> None:
    whole = contents(prepared)
    assert whole["quarantine.jsonl"].count(b"\n") == 1, "the same bad row in two files of a folder is a duplicate"
    assert any(name.startswith("side_encoder/") for name in whole)
    assert b'"duplicates": 75' in whole["survey.json"]
    assert contents(prepare_run(config, shop.folder / "parts", engine=engine)) == whole
    assert not list(shop.folder.rglob("*.draft"))


def test_workers_prepare_a_log_in_two_locations_like_one_process(shop: Shop) -> None:
    table = shop.table(400).append_column("request_id", pa.array([f"r{n}" for n in range(400)]))
    folders = shop.folder / "history", shop.folder / "joined"
    for folder, rows in zip(folders, (table, table.slice(300, 80)), strict=True):
        folder.mkdir()
        for number in range(2):
            half = rows.slice(number * len(rows) // 2, len(rows) // 2)
            pq.write_table(half, folder / f"part-{number}.parquet")
    config = shop.config(logs={"path": folders, "test_from": FIRST_DAY.replace(day=10)})
    whole, parts = (
        prepare_run(config, shop.folder / name, engine=engine) for name, engine in (("a", None), ("b", map))
    )
    assert whole.load_survey()["replaced"] == 80
    assert contents(parts) == contents(whole)


def test_workers_check_a_log_like_one_process(shop: Shop, config: Config) -> None:
    whole, parts = (
        check(config, shop.folder / name, engine=engine).to_json() for name, engine in (("a", None), ("b", map))
    )
    assert parts == whole
    assert (shop.folder / "a").read_bytes() == (shop.folder / "b").read_bytes() != b""


def run_here(workers: int, function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
    """Call a function that was sent, as a worker does, but in this process."""
    assert workers == 2
    return map(pickle.loads(pickle.dumps(function)), pickle.loads(pickle.dumps(parts)))


@pytest.mark.parametrize("run", [run_here, pytest.param(run_in_processes, marks=pytest.mark.nightly)])
def test_prepare_with_workers_writes_the_files_of_one_process(
    shop: Shop, config: Config, prepared: RunFolder, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the command: workers import the packages, which takes seconds."""
    monkeypatch.setattr("pipelines.engines.run_in_processes", run)
    toml = shop.folder / "ranker.toml"
    config.write(toml)
    assert main(["prepare", str(toml), "--run", str(shop.folder / "parts"), "--workers", "2"]) == 0
    assert contents(RunFolder(shop.folder / "parts")) == contents(prepared)


def test_damaged_file_is_named_and_nothing_is_left(shop: Shop) -> None:
    write_log(shop)
    damaged = shop.log / "b" / "part-1.parquet"

    def engine(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
        damaged.write_bytes(b"not Parquet")
        return map(function, parts)

    with pytest.raises(LogError, match=f"{damaged}: "):
        prepare_run(full_config(shop), shop.folder / "run", engine=engine)
    assert not (shop.folder / "run").exists()


def test_ids_of_another_type_in_a_file_are_named(shop: Shop) -> None:
    shop.write(shop.table(100))
    numbers = shop.table(100)
    place = numbers.column_names.index("item_id")
    shop.write(numbers.set_column(place, "item_id", pa.array(range(100))), "part-1.parquet")
    messages = []
    for engine in (None, map):
        with pytest.raises(LogError, match=r"part-1\.parquet: column 'item_id' holds int64, but string in ") as caught:
            prepare_run(shop.config(), shop.folder / "run", engine=engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


# Trainings that use a preparation.


def weights(run: RunFolder) -> bytes:
    return run.best.read_bytes()


def test_training_continues_a_prepared_run(shop: Shop, config: Config, copy: RunFolder) -> None:
    with pytest.raises(RankerError, match="contains an unfinished run: continue it with --resume"):
        train(config, copy.path)
    before = contents(copy)
    assert weights(train(config, copy.path, resume=True)) == weights(train(config, shop.folder / "alone"))
    assert contents(copy) == before


def require(run: RunFolder, config: Config) -> None:
    require_preparation(run, config, log_inputs(open_log(config.logs, config.training_schema), config.logs))


def train_with(run: RunFolder, config: Config, folder: Path) -> RunFolder:
    """Train with the preparation of a run."""
    require(run, config)
    return train(config, folder, prepared=run)


def test_other_models_share_a_preparation(
    shop: Shop, config: Config, copy: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    document = config.model_dump(exclude_none=True)
    document["features"][0]["dim"] = 8
    document["tasks"][0]["weight"] = 0.5
    document["model"]["gate"] = {"kind": "softmax"}
    document["model"]["side_tower"]["layers"] = [3]
    document["training"]["seed"] = 7
    other = Config.model_validate(document)
    capsys.readouterr()
    trained = train_with(copy, other, shop.folder / "other")
    assert f"the log was prepared in {copy.path}" in capsys.readouterr().err
    assert contents(trained) == contents(copy)
    assert (trained.encoder / "scales.parquet").samefile(copy.encoder / "scales.parquet")
    assert weights(trained) == weights(train(other, shop.folder / "alone"))


def test_preparation_is_copied_to_another_filesystem(
    shop: Shop, config: Config, prepared: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    other = RunFolder.create(shop.folder / "other", config)
    with monkeypatch.context() as patch:
        patch.setattr("os.link", link)
        share_preparation(prepared, other)
    assert contents(other) == contents(prepared)


def changed(config: Config, section: str, **settings: Any) -> Config:
    """Return the configuration with some settings of a section replaced."""
    part = getattr(config, section)
    if isinstance(part, tuple):
        part = (part[0].model_copy(update=settings), *part[1:])
    else:
        part = part.model_copy(update=settings)
    return config.model_copy(update={section: part})


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("logs", {"train_from": FIRST_DAY}, "logs.train_from is missing there and '2026-01-01T00:00:00' here"),
        ("columns", {"weight": "price"}, "columns.weight is missing there and 'price' here"),
        ("features", {"min_count": 2}, "features.user_id.min_count is 1 there and 2 here"),
        ("tasks", {"mask": "tab"}, "tasks.click.mask is missing there and 'tab' here"),
        ("model", {"side_tower": None}, "model.side_tower is a table there and missing here"),
    ],
)
def test_preparation_with_other_settings_is_rejected(
    section: str, settings: dict[str, Any], message: str, config: Config, prepared: RunFolder
) -> None:
    with pytest.raises(LogError) as caught:
        require(prepared, changed(config, section, **settings))
    hint = "prepare the log again with 'ranker prepare'"
    assert str(caught.value) == f"{prepared.path} is not prepared for this training: {message}; {hint}"


def test_preparation_without_the_measured_shares_is_rejected(shop: Shop, config: Config) -> None:
    run = prepare_run(changed(config, "training", oov_dropout=0.1), shop.folder / "prepared")
    with pytest.raises(
        LogError, match=r"no shares of unknown ids, because its training\.oov_dropout is not 'measured'"
    ):
        train_with(run, config, shop.folder / "other")


def change_file(shop: Shop) -> None:
    shop.write(shop.table(10, seed=1), "b/part-0.parquet")


def add_file(shop: Shop) -> None:
    shop.write(shop.table(10, seed=1), "b/part-2.parquet")


def remove_file(shop: Shop) -> None:
    (shop.log / "a" / "part-0.parquet").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_file, "file 'b/part-0.parquet' of the log changed since"),
        (add_file, "file 'b/part-2.parquet' of the log was added or removed since"),
        (remove_file, "file 'a/part-0.parquet' of the log was added or removed since"),
    ],
)
def test_preparation_of_another_log_is_rejected(
    change: Callable[[Shop], None], message: str, shop: Shop, plain: RunFolder
) -> None:
    write_log(shop)
    require(plain, shop.config())
    change(shop)
    with pytest.raises(LogError, match=message):
        train_with(plain, shop.config(), shop.folder / "other")


def test_preparation_with_another_side_table_is_rejected(shop: Shop) -> None:
    rows, items = shop.table(400), shop.folder / "items.parquet"
    shop.write(rows.drop_columns(["price"]))
    prices = pa.table({"item_id": [f"v{v}" for v in range(30)], "price": [float(v) for v in range(30)]})
    pq.write_table(prices, items)
    config = shop.config(logs={"items": items})
    run = prepare_run(config, shop.folder / "prepared")
    swapped = pa.array([0.0, 2.0, 1.0, *range(3, 30)])
    pq.write_table(prices.set_column(1, "price", swapped), items)  # a file with the same footer
    with pytest.raises(LogError, match=r"logs\.items changed since; prepare the log again"):
        train_with(run, config, shop.folder / "other")


def test_log_may_have_moved_since_it_was_prepared(shop: Shop) -> None:
    write_log(shop)
    run = prepare_run(shop.config(), shop.folder / "prepared")
    shutil.move(shop.log, shop.folder / "moved")
    config = shop.config(logs={"path": shop.folder / "moved"})
    assert contents(train_with(run, config, shop.folder / "other")) == contents(run)


def test_run_that_continues_another_is_no_preparation(shop: Shop, plain: RunFolder, plain_config: Config) -> None:
    second = train(plain_config, shop.folder / "second", warm_start=WarmStart(plain, reopen=False))
    with pytest.raises(
        LogError, match=f"it continues {plain.path}, whose ids it has; use a run that was prepared from"
    ):
        train_with(second, plain_config, shop.folder / "other")


def test_incomplete_preparations_are_rejected(shop: Shop, copy: RunFolder, config: Config) -> None:
    def reason() -> str:
        with pytest.raises(LogError) as caught:
            train_with(copy, config, shop.folder / "other")
        return str(caught.value)

    quarantine = copy.quarantine.read_text()
    copy.quarantine.unlink()  # may have been deleted, because it has data of users
    require(copy, config)
    assert quarantine
    for text in ("{}", "[]", '{"format": 0}'):
        copy.inputs.write_text(text)
        assert "it was written by another version; prepare the log again" in reason()
    copy.inputs.unlink()
    assert "it was written by an earlier version, or is damaged; prepare the log again" in reason()
    shutil.rmtree(copy.encoder)
    assert f"it is not complete; continue with 'ranker prepare … --run {copy.path} --resume'" in reason()
    shutil.rmtree(copy.path)
    assert "it is not a run folder; create one with 'ranker prepare'" in reason()


def test_one_run_per_task_has_no_common_preparation(shop: Shop, plain: RunFolder) -> None:
    write_log(shop)
    single = shop.config(model={"gate": {"kind": "single_task"}})
    with pytest.raises(UsageError, match="single_task trains a run for each task, and each of them reads the log"):
        prepare_run(single, shop.folder / "other")
    toml = shop.write_config(model={"gate": {"kind": "single_task"}})
    code, _, err = ranker("train", toml, "--run", shop.folder / "other", "--prepared", plain.path)
    assert (code, "single_task trains a run for each task, and each reads the log" in err) == (2, True)
    trained = train(single, shop.folder / "single")
    with pytest.raises(LogError, match="it has a run for each task, which are prepared separately"):
        require(trained, shop.config())


def test_train_uses_a_preparation_that_it_names(shop: Shop) -> None:
    write_log(shop)
    toml, run = shop.write_config(), shop.folder / "prepared"
    code, out, _ = ranker("prepare", toml, "--run", run)
    assert (code, out) == (0, f"{run}\n")
    arguments = ["train", toml, "--run", shop.folder / "run", "--prepared", run]
    assert ranker(*arguments, "--from", run)[0] == 2
    code, _, err = ranker("train", toml, "--run", run, "--prepared", run, "--overwrite")
    assert (code, "is the folder of the run itself: continue it with --resume" in err) == (2, True)
    code, _, err = ranker(*arguments, "--set", "logs.test_from=2026-01-09T12:00:00")
    assert (code, f"{run} is not prepared for this training: logs.test_from is " in err) == (1, True)
    assert not (shop.folder / "run").exists()
    code, _, err = ranker(*arguments)
    assert code == 0
    assert f"the log was prepared in {run}\n" in err
    assert "reading the log" not in err


def test_training_prepares_itself_if_a_preparation_does_not_fit(
    shop: Shop, plain: RunFolder, plain_config: Config
) -> None:
    config = changed(plain_config, "logs", test_until=FIRST_DAY.replace(day=11))
    other = train(config, shop.folder / "other", prepared=plain)
    assert not other.survey.samefile(plain.survey)
    assert other.load_survey()["rows"] == plain.load_survey()["rows"]


def test_counters_of_a_preparation_with_other_bins_are_used(shop: Shop, config: Config, prepared: RunFolder) -> None:
    features = [f.model_copy(update={"bins": 3}) if f.name == "price" else f for f in config.features]
    other = config.model_copy(update={"features": tuple(features)})
    trained = train(other, shop.folder / "other", prepared=prepared)
    assert not trained.survey.samefile(prepared.survey)
    for name in ("features", "counters"):
        shared = [file for file in (prepared.path / name).rglob("*") if file.is_file()]
        assert shared
        assert all((trained.path / file.relative_to(prepared.path)).samefile(file) for file in shared)


def test_full_disk_ends_the_sharing_of_a_preparation(
    shop: Shop, plain: RunFolder, plain_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    other = shop.folder / "other"
    with monkeypatch.context() as patch:
        patch.setattr("os.link", fail)
        patch.setattr("shutil.copyfile", fail)
        with pytest.raises(OutputError, match=f"{other}.*No space left on device"):
            train(plain_config, other, prepared=plain)
    assert train(plain_config, other, prepared=plain, resume=True).finished


def test_interrupted_sharing_does_not_change_the_other_run(
    shop: Shop, copy: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that are linked before the encoder belong to both runs."""
    write_log(shop)
    config, other = full_config(shop), shop.folder / "other"
    before = contents(copy)

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.training.setup.share_preparation", share_without_encoder)
        with pytest.raises(KeyboardInterrupt):
            train(config, other, prepared=copy)
    assert RunFolder(other).position_encoder.is_dir()
    shop.write(shop.table(50, seed=5).append_column("position", pa.array([0.0] * 50)), "b/part-2.parquet")
    assert RunFolder(other).index.samefile(copy.index)
    prepare_run(config, other, resume=True)
    assert contents(copy) == before
    assert contents(RunFolder(other)) != before


def share_without_encoder(run: RunFolder, other: RunFolder) -> None:
    """Share a preparation, but stop before the encoder."""

    def share_or_stop(source: Path, target: Path) -> None:
        if source == run.encoder:
            raise KeyboardInterrupt
        share_folder(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.runs.preparation.share_folder", share_or_stop)
        share_preparation(run, other)


def test_shared_files_stay_protected(shop: Shop, config: Config, copy: RunFolder) -> None:
    protected = copy.encoder / "scales.parquet"
    protected.chmod(0o444)
    train_with(copy, config, shop.folder / "other")
    assert protected.stat().st_mode & 0o777 == 0o444


def test_deleted_preparation_is_replaced(
    shop: Shop, plain: RunFolder, plain_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be deleted while another one starts."""
    run = RunFolder(shutil.copytree(plain.path, shop.folder / "prepared"))

    def deleted(source: RunFolder, target: RunFolder) -> None:
        shutil.rmtree(source.path)
        share_preparation(source, target)

    monkeypatch.setattr("pipelines.training.setup.share_preparation", deleted)
    assert train(plain_config, shop.folder / "other", prepared=run).finished
    assert not run.path.exists()
