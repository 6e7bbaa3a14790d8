"""Tests of a study in a PostgreSQL database: machines are folders, and run in threads or processes of this machine."""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import optuna
import pg8000
import pytest

from pipelines.cli.main import main
from pipelines.config.config import load_config
from pipelines.tuning import database
from pipelines.tuning.database import DatabaseStorage
from pipelines.tuning.database_address import DatabaseAddress
from pipelines.tuning.storage import StorageError
from pipelines.tuning.study import START, OpenStorage, StudyFolder, trial_outcome
from pipelines.tuning.workers import format_summary, run_worker, summarize
from ranking.errors import ConfigError, LogError, OutputError
from tests.pipelines.conftest import Shop
from tests.pipelines.tuning.fake_trainings import fake_trainings, training_with_losses
from tests.pipelines.tuning.waiting_worker import LEASED, lease_and_wait
from tests.support.ports import HOST, free_port
from tests.support.postgresql_server import PASSWORD, URL_PASSWORD, USER, PostgresqlServer, postgresql_server
from tests.support.waiting import wait_until

pytestmark = [
    # ``warnings.catch_warnings`` is not safe with the threads of these tests.
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:Heartbeat of storage"),
]
NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="module")
def tables(server: PostgresqlServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a database with the tables of a study and no study; read only."""
    server.execute("CREATE DATABASE tables")
    storage = storage_of(server.url("tables"))(tmp_path_factory.mktemp("tables"))
    storage._storage.engine.dispose()  # a database with connections cannot be copied
    return "tables"


@pytest.fixture
def template(tables: str) -> str:
    """Name of the database that ``url`` copies."""
    return tables


@pytest.fixture
def url(server: PostgresqlServer, template: str) -> str:
    """The address of a new database."""
    name = f"study{next(NAMES)}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.url(name)


empty_database = pytest.mark.parametrize("template", ["template1"])


def storage_of(url: str, heartbeat_seconds: int = 1, grace_seconds: int = 60) -> OpenStorage:
    address = DatabaseAddress.parse(url)
    return partial(DatabaseStorage, address=address, heartbeat_seconds=heartbeat_seconds, grace_seconds=grace_seconds)


@pytest.fixture
def machine(shop: Shop, url: str) -> Callable[..., StudyFolder]:
    """Returns the study in the folder of a machine; options are those of the storage."""

    def open_study(name: str, **options: int) -> StudyFolder:
        return StudyFolder.create(shop.folder / name, shop.config(), storage_of(url, **options))

    return open_study


Machine = Callable[..., StudyFolder]


def outcomes(study: StudyFolder) -> list[str]:
    return [trial_outcome(t) for t in study.trials()]


def run_trials(study: StudyFolder, total: int) -> None:
    run_worker(study.path, total, open_storage=lambda _: study.storage)


# Several machines.


@pytest.mark.nightly(short="test_machines_lease_no_more_trials_than_the_total")
@empty_database
def test_machines_that_start_together_share_the_trials(
    shop: Shop, url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trainings(monkeypatch, *(training_with_losses(loss) for loss in (3.0, 1.0, 2.0, 5.0, 4.0, 6.0)))
    with ThreadPoolExecutor(3) as pool:  # also the tables are created at the same time
        studies = list(pool.map(machine, "abc"))
        list(pool.map(run_trials, studies, [6] * 3))
    for study in studies:
        assert outcomes(study) == ["converged"] * 6
        study.update_best()
    assert len({study.best_file.read_text() for study in studies}) == 1
    assert len({json.dumps(t.params, sort_keys=True) for t in studies[0].trials()}) == 6
    runs = [int(run.parent.name) for study in studies for run in study.path.glob("trials/*/selection.json")]
    assert sorted(runs) == list(range(6))
    weights = [run for study in studies for run in study.path.glob("trials/*/checkpoints")]
    assert [run.parent.name for run in weights] == [str(studies[0].ranked_trials()[0].number)]


def test_machines_lease_no_more_trials_than_the_total(machine: Machine) -> None:
    studies = [machine(name) for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        leases = list(pool.map(lambda number: studies[number % 4].lease(5, number), range(12)))
    leased = [lease for lease in leases if lease is not None]
    assert sorted(lease.trial.number for lease in leased) == list(range(5))
    assert sum(START in lease.trial.user_attrs for lease in leased) == 1
    for lease in leased:
        lease.release()


@pytest.mark.nightly(short="test_summary_names_the_machine_of_the_best_trial")
def test_preparation_of_another_machine_is_not_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = machine("a"), machine("b")
    fake_trainings(monkeypatch, training_with_losses(1.0))
    run_trials(there, 1)
    assert there.prepared_run() is not None
    assert here.prepared_run() is None


def test_summary_names_the_machine_of_the_best_trial(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-7")
    here, there = machine("a"), machine("b")
    fake_trainings(monkeypatch, training_with_losses(1.0))
    run_trials(there, 1)
    place = f"gpu-7:{there.run_folder(0)}"
    assert summarize(here)["best"]["run"] == place
    assert f"the run of the best trial is on another machine: {place}" in format_summary(summarize(here)).splitlines()
    assert "run" not in summarize(there)["best"]
    assert "another machine" not in format_summary(summarize(there))


# Machines that die.


def age_heartbeats(server: PostgresqlServer, url: str) -> None:
    """Let all heartbeats be a day old."""
    server.execute("UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 day'", url.rpartition("/")[2])


@pytest.mark.system
def test_trial_of_a_killed_process_is_retried_by_another_machine(
    shop: Shop,
    server: PostgresqlServer,
    url: str,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects a study of which a machine dies; starts a process that imports PyTorch."""
    here, there = machine("a"), machine("b")
    arguments = (there.path, 1, 0, None, storage_of(url))
    process = multiprocessing.get_context("spawn").Process(target=lease_and_wait, args=arguments, daemon=True)
    process.start()
    wait_until((there.path / LEASED).exists)
    process.kill()
    process.join()
    fake_trainings(monkeypatch, training_with_losses(1.0))
    with monkeypatch.context() as patch:  # the worker waits, because the trial may still run
        patch.setattr("pipelines.tuning.workers.time.sleep", lambda _: age_heartbeats(server, url))
        run_trials(here, 1)
    assert f"waiting for the trials of other machines: {here.trials()[0].user_attrs['run']}" in capsys.readouterr().err
    assert outcomes(here) == ["abandoned", "converged"]
    abandoned, retry = here.trials()
    assert retry.user_attrs["takes_up"] == abandoned.number
    assert retry.params == abandoned.params
    assert len(here.ended_trials()) == 1


@pytest.mark.nightly(short="test_trial_of_a_killed_process_is_retried_by_another_machine")
def test_trial_of_a_killed_process_is_retried_at_once_on_its_machine(machine: Machine) -> None:
    study = machine("a")
    lease = study.lease(1, 0)
    assert lease is not None
    lease.release()
    again = study.lease(1, 0)
    assert again is not None
    assert outcomes(study)[0] == "abandoned"
    assert again.trial.params == lease.trial.params
    again.release()


@pytest.mark.nightly(short="test_late_result_of_a_trial_that_is_repeated_does_not_count")
def test_trial_with_heartbeats_is_not_abandoned(server: PostgresqlServer, url: str, machine: Machine) -> None:
    here, there = machine("a"), machine("b")
    lease = there.lease(1, 0)
    assert lease is not None
    age_heartbeats(server, url)
    old = "SELECT 1 / (1 - count(*)) FROM trial_heartbeats WHERE heartbeat < now()::timestamp - interval '12 hours'"

    def is_young() -> bool:
        with suppress(pg8000.Error):
            server.execute(old, url.rpartition("/")[2])
            return True
        return False

    wait_until(is_young, "the next heartbeat is recorded")
    assert here.lease(1, 0) is None
    assert [trial.number for trial in here.trials_elsewhere()] == [0]
    assert there.finish(lease, "converged", 1.0)
    assert outcomes(here) == ["converged"]


def test_late_result_of_a_trial_that_is_repeated_does_not_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("a", grace_seconds=1), machine("b")
    lease = there.lease(1, 0)
    assert lease is not None
    lease.stop()  # like a machine that is suspended
    there.run_folder(0).mkdir()
    again = wait_until(lambda: here.lease(1, 0))
    assert not there.finish(lease, "converged", 1.0)
    assert not there.run_folder(0).exists()
    assert here.finish(again, "converged", 2.0)
    assert outcomes(there) == ["abandoned", "converged"]
    assert [t.value for t in there.ranked_trials()] == [2.0]


def test_training_of_a_trial_that_is_repeated_stops(
    shop: Shop, url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = machine("a"), machine("b")

    def training(config: Any, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        here._study.tell(0, state=database.optuna.trial.TrialState.FAIL)
        return training_with_losses(1.0)(config, on_check)

    fake_trainings(monkeypatch, training, training_with_losses(2.0))
    run_trials(there, 1)
    assert "trial 0: abandoned, because its heartbeats stopped; it is repeated" in capsys.readouterr().err
    assert [t.value for t in there.ranked_trials()] == [2.0]
    assert not there.run_folder(0).exists()


@pytest.mark.nightly(short="test_late_result_of_a_trial_that_is_repeated_does_not_count")
def test_trial_whose_machine_died_before_its_first_heartbeat_is_retried(machine: Machine) -> None:
    here, there = machine("a"), machine("b")
    there._study.ask()
    lease = here.lease(1, 0)
    assert lease is not None
    assert lease.trial.number == 1
    assert outcomes(here)[0] == "abandoned"
    lease.release()


@pytest.mark.nightly(short="test_late_result_of_a_trial_that_is_repeated_does_not_count")
def test_run_folder_of_a_trial_that_another_machine_has_repeated_is_deleted(machine: Machine) -> None:
    here, there = machine("a", grace_seconds=1), machine("b")
    lease = there.lease(1, 0)
    assert lease is not None
    there.run_folder(0).mkdir()
    lease.release()  # the machine is switched off
    again = wait_until(lambda: here.lease(1, 0))
    assert machine("b").lease(1, 0) is None
    assert not there.run_folder(0).exists()
    again.release()


# Configuration and folder.


def test_study_of_another_configuration_fails(
    shop: Shop, url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("a")
    fake_trainings(monkeypatch, training_with_losses(1.0))
    run_trials(here, 1)
    changed = shop.config(model={"experts": 4})
    with pytest.raises(ConfigError, match=r"^the study '.*' in postgresql://.*: model\.experts was 3, now it is 4; "):
        StudyFolder.create(shop.folder / "b", changed, storage_of(url))
    assert outcomes(machine("b")) == ["converged"]


def test_study_whose_log_was_never_usable_accepts_another_configuration(
    shop: Shop, url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trainings(monkeypatch, LogError("log: no such log"))
    with pytest.raises(SystemExit):
        run_trials(machine("a"), 1)
    shop.folder.joinpath(
        "a/trials/0/config.toml"
    ).unlink()  # of the fake; a training writes it after it has read the log
    study = StudyFolder.create(shop.folder / "a", shop.config(model={"experts": 4}), storage_of(url))
    assert study.trials() == []
    assert StudyFolder.create(shop.folder / "b", study.config, storage_of(url)).config.model.num_experts == 4


def test_study_that_another_configuration_replaces_gets_no_trials_of_the_first(
    shop: Shop, url: str, machine: Machine
) -> None:
    here = machine("a")
    there = StudyFolder.create(shop.folder / "b", shop.config(model={"experts": 4}), storage_of(url))
    for study in here, StudyFolder(here.path, storage_of(url)):  # a worker opens it by name
        with pytest.raises(OutputError, match=r"^the study '.*' of .*a in postgresql://.* was deleted, or replaced by"):
            study.lease(1, 0)
    assert there.trials() == []


def test_machines_that_start_together_replace_a_study_without_trials_once(
    shop: Shop, url: str, machine: Machine
) -> None:
    machine("a")
    changed, other = shop.config(model={"experts": 4}), storage_of(url)

    class LateStorage(DatabaseStorage):
        @contextmanager
        def lock(self) -> Iterator[None]:
            StudyFolder.create(shop.folder / "b", changed, other)
            with super().lock():
                yield

    late = StudyFolder.create(shop.folder / "c", changed, partial(LateStorage, address=DatabaseAddress.parse(url)))
    lease = late.lease(1, 0)
    assert lease is not None
    lease.release()  # or its thread complains in a later test that the server is gone
    assert len(StudyFolder.create(shop.folder / "b", changed, other).trials()) == 1


def test_study_that_is_deleted_during_a_trial_stops_the_worker(
    url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = machine("a")

    def training(config: Any, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        optuna.delete_study(study_name=config.name, storage=study.storage._storage)
        return training_with_losses(1.0)(config, on_check)

    fake_trainings(monkeypatch, training)
    with pytest.raises(SystemExit):
        run_trials(study, 1)
    assert re.search(r"worker 0: the study '.*' of .*a in postgresql://.* was deleted", capsys.readouterr().err)


def test_folder_of_a_study_without_database_fails(shop: Shop, machine: Machine) -> None:
    StudyFolder.create(shop.folder / "a", shop.config())
    with pytest.raises(OutputError, match=r"a is a study without a database: name another folder, or leave out"):
        machine("a")


def test_folder_of_a_study_in_a_database_without_it_fails(shop: Shop, machine: Machine) -> None:
    study = machine("a")
    with pytest.raises(OutputError, match=rf"a is a study in postgresql://{HOST}:\d+/study\d+: add --storage"):
        StudyFolder.create(study.path, study.config)


def test_folder_with_trials_of_another_database_fails(shop: Shop, server: PostgresqlServer, machine: Machine) -> None:
    study = machine("a")
    server.execute("CREATE DATABASE another")
    with pytest.raises(OutputError, match=r"a has trials of another study, in postgresql://.*/study\d+: name another"):
        StudyFolder.create(study.path, study.config, storage_of(server.url("another")))


# Connections.


@pytest.mark.nightly(short="test_server_that_stays_away_stops_the_worker_and_the_trial_is_retried")
def test_restart_of_the_server_during_a_trial_is_survived(server: PostgresqlServer, machine: Machine) -> None:
    study = machine("a")
    lease = study.lease(1, 0)
    assert lease is not None
    server.stop()
    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(study.finish, lease, "converged", 1.0)
        server.start()
        assert finished.result()
    assert outcomes(study) == ["converged"]


def test_server_that_stays_away_stops_the_worker_and_the_trial_is_retried(
    server: PostgresqlServer, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = machine("a", grace_seconds=1)

    def training(config: Any, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        server.stop()
        return training_with_losses(1.0)(config, on_check)

    fake_trainings(monkeypatch, training, training_with_losses(2.0))
    try:
        with pytest.raises(SystemExit):
            run_trials(study, 1)
    finally:
        server.start()
    assert "the connection was lost (" in capsys.readouterr().err
    run_trials(study, 1)
    assert outcomes(study) == ["abandoned", "converged"]


def test_lock_whose_connection_the_server_has_ended_fails(server: PostgresqlServer, machine: Machine) -> None:
    study = machine("a")
    with pytest.raises(StorageError, match=r"the connection was lost"), study.storage.lock():
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")


# Command line.


@pytest.mark.nightly(short="test_tune_command_that_the_server_rejects_fails_with_one_line")
@empty_database
def test_tune_command_with_storage_prints_the_study_as_json(
    shop: Shop, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Protects the way of the address into the worker process, with a real training."""
    shop.write(shop.table(300))
    shop.config().write(shop.folder / "ranker.toml")
    arguments = ["tune", str(shop.folder / "ranker.toml"), "--study", str(shop.folder / "a"), "--trials", "1"]
    status = main([*arguments, "--storage", url, "--json"])
    out, err = capfd.readouterr()
    assert sum(json.loads(out)["trials"].values()) == 1, err
    assert status == (0 if json.loads(out)["best"] else 1)
    assert load_config(shop.folder / "a" / "config.toml").name == shop.config().name
    written = [file.read_bytes() for file in (shop.folder / "a").rglob("*") if file.is_file()]
    for text in (PASSWORD, URL_PASSWORD):
        assert text not in out + err
        assert not any(text.encode() in content for content in written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((URL_PASSWORD, "secret"), rf"wrong name or password of the user {USER}: correct --storage or PGPASSWORD"),
        ((f":{URL_PASSWORD}", ""), rf"wrong name or password of the user {USER}: correct --storage or PGPASSWORD"),
        (("/study", "/absent"), r"there is no such database: createdb -h 127\.0\.0\.1 -p \d+ absent\d+"),
    ],
)
def test_tune_command_that_the_server_rejects_fails_with_one_line(
    shop: Shop, url: str, change: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.config().write(shop.folder / "ranker.toml")
    arguments = ["tune", str(shop.folder / "ranker.toml"), "--study", str(shop.folder / "a")]
    assert main([*arguments, "--storage", url.replace(*change)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"ranker: postgresql://{HOST}:\d+/\w+: {message}", line)
    assert not (shop.folder / "a").exists()


@empty_database
def test_user_without_the_right_to_create_tables_fails(shop: Shop, server: PostgresqlServer, url: str) -> None:
    server.execute("CREATE USER guest PASSWORD 'guest'")
    guest = url.replace(f"{USER}:{URL_PASSWORD}", "guest:guest")
    with pytest.raises(StorageError, match=r"permission denied for schema public; .* GRANT CREATE ON SCHEMA public TO"):
        StudyFolder.create(shop.folder / "a", shop.config(), storage_of(guest))


def test_server_without_tls_that_the_address_requires_fails(shop: Shop, url: str) -> None:
    with pytest.raises(StorageError, match=r"cannot be reached \(.* SSL\)"):
        StudyFolder.create(shop.folder / "a", shop.config(), storage_of(f"{url}?sslmode=require"))


def test_server_that_does_not_listen_fails(shop: Shop) -> None:
    url = f"postgresql://tuner:secret@{HOST}:{free_port()}/study"
    with pytest.raises(StorageError, match=r"cannot be reached \(.*Connection refused\); check the address") as error:
        StudyFolder.create(shop.folder / "a", shop.config(), storage_of(url))
    assert "secret" not in str(error.value)


def test_tune_command_without_the_driver_names_the_extra(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.config().write(shop.folder / "ranker.toml")
    monkeypatch.setitem(sys.modules, "pg8000", None)
    monkeypatch.delitem(sys.modules, "pipelines.tuning.database")
    arguments = ["tune", str(shop.folder / "ranker.toml"), "--study", str(shop.folder / "a")]
    assert main([*arguments, "--storage", "postgresql://tuner@host/study"]) == 1
    assert capsys.readouterr().err == "ranker: this command needs pg8000: pip install 'dselect-ranker[postgresql]'\n"


def test_tune_command_with_another_kind_of_database_fails_without_quoting_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["tune", "ranker.toml", "--study", str(tmp_path), "--storage", "mysql://tuner:secret@host/study"]
    with pytest.raises(SystemExit):
        main(arguments)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--storage: is not the address of a database: write postgresql://USER" in last
    assert "secret" not in last
