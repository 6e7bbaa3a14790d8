"""Tests of the lanes, and of the evidence that failed tests leave behind."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import lanes
from tests.support.processes import running_service
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]


def run_program() -> None:
    subprocess.run(["true"], check=True)


@contextmanager
def program() -> Iterator[None]:
    run_program()
    yield


class Base:
    def start(self) -> None:
        run_program()


class Derived(Base):
    pass


def uses_class() -> None:
    Derived()


def uses_lambda() -> Callable[[], None]:
    return lambda: run_program()


def uses_service() -> object:
    return running_service


def waits() -> None:
    wait_until(lambda: True)


def recursive() -> None:
    recursive()


@pytest.mark.parametrize("function", [run_program, program, uses_class, uses_lambda, uses_service])
def test_lane_of_code_that_starts_programs_is_process(function: Callable[[], object]) -> None:
    assert lanes._uses_programs(function, {})


@pytest.mark.parametrize("function", [waits, recursive])
def test_lane_of_other_code_is_core(function: Callable[[], object]) -> None:
    assert not lanes._uses_programs(function, {})


def test_core_test_that_starts_a_program_fails() -> None:
    hidden = importlib.import_module("subprocess")
    with pytest.raises(pytest.fail.Exception, match="a test of the lane 'core' starts a program"):
        hidden.run(["true"])


FAILING = """
from pathlib import Path
import pytest

pytestmark = pytest.mark.system

def test_flaky(tmp_path_factory):
    marker = Path(__file__).with_name("marker")
    if not marker.exists():
        marker.touch()
        raise ValueError("first try")

def test_broken():
    assert 1 + 1 == 3
"""


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_example.py"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.lanes",
        "-p",
        "tests.evidence",
        *options,
        f"--rootdir={folder}",
    ]
    return subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True)


def test_failed_and_flaky_tests_are_named_with_message_and_load(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    result = run_pytest(tmp_path, FAILING, "--reruns=1", f"--keep={kept}", "-c", str(ROOT / "pyproject.toml"))
    assert result.returncode == 1
    flaky, failed = (kept / "summary.txt").read_text().splitlines()
    assert flaky.startswith("FLAKY test_example.py::test_flaky (load ")
    assert flaky.endswith("ValueError: first try)")
    assert flaky in result.stdout
    assert failed == "FAILED test_example.py::test_broken - assert (1 + 1) == 3"
    assert list(json.loads((kept / "flaky.json").read_text())) == ["test_example.py::test_flaky"]
    evidence = (kept / "test_example.py-test_broken.call.failed.txt").read_text()
    assert "---- machine\nload " in evidence
    assert "listening ports: " in evidence


class Item(SimpleNamespace):
    """A collected test."""

    def __init__(self, name: str, *marks: pytest.MarkDecorator) -> None:
        super().__init__(nodeid=f"test_example.py::{name}", marks=[mark.mark for mark in marks])

    def iter_markers(self) -> list[pytest.Mark]:
        return self.marks

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)


def test_lane_that_is_found_cannot_be_written() -> None:
    with pytest.raises(pytest.UsageError, match=r"is marked \['process'\]; write 'system', 'nightly' or neither"):
        lanes.pytest_collection_modifyitems([Item("test_it", pytest.mark.process)])  # type: ignore[list-item]


def test_lint_names_tests_that_run_in_no_lane_that_they_need(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    nightly = pytest.mark.nightly
    items = [
        Item("test_without_short_form", nightly),
        Item("test_with_nightly_short_form", nightly(short="test_without_short_form")),
        Item("test_with_short_form", nightly(short="test_short")),
        Item("test_short"),
        Item("test_with_short_case[1]"),
        Item("test_with_short_case[9]", nightly),
    ]
    (tmp_path / "tests").mkdir()
    for name in ("checks.py", "test_collected.py"):
        (tmp_path / "tests" / name).write_text("def test_it():\n    pass\n")
    for item in items:
        item.path = tmp_path / "tests" / "test_collected.py"
    config = SimpleNamespace(rootpath=tmp_path, getoption=lambda _: True, getini=pytestconfig.getini)
    with pytest.raises(pytest.UsageError) as caught:
        lanes.pytest_collection_finish(SimpleNamespace(items=items, config=config))  # type: ignore[arg-type]
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "test_example.py::test_with_nightly_short_form",
        "test_example.py::test_without_short_form",
        "tests/checks.py",
    ]


NOTICES_A_GAP = """
import sys, time
last = time.monotonic()
while time.monotonic() - last < 0.5:
    last = time.monotonic()
sys.exit(3)
"""
WITH_SHORT_PAUSES = (
    "import sys, stalls; stalls.PAUSE_SECONDS, stalls.STALL_SECONDS = (0.1, 0.1), 0.7; sys.exit(stalls.main())"
)


STOPPED_CHILD = """
import subprocess, sys, time
stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('continued', flush=True)"
child = subprocess.Popen([sys.executable, "-c", stop])
time.sleep(3)
child.kill()
"""


def test_stalls_do_not_continue_a_process_that_the_command_has_stopped() -> None:
    command = [sys.executable, "-c", WITH_SHORT_PAUSES, sys.executable, "-c", STOPPED_CHILD]
    result = subprocess.run(command, cwd=ROOT / ".ci", capture_output=True, text=True, timeout=100)
    assert result.returncode == 0
    assert result.stdout == ""
    assert " stalls of 0.7 s" in result.stderr


def test_stalls_stop_all_processes_of_a_command_and_keep_its_exit_code() -> None:
    nested = [sys.executable, "-c", NOTICES_A_GAP]
    outer = [sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.run({nested!r}).returncode)"]
    command = [sys.executable, "-c", WITH_SHORT_PAUSES, *outer]
    result = subprocess.run(command, cwd=ROOT / ".ci", capture_output=True, text=True, timeout=100)
    assert result.returncode == 3
    assert result.stderr.endswith(" stalls of 0.7 s\n")
