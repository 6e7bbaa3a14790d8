"""The lanes of the test suite: every test is in exactly one of them. See "Tests" in CONTRIBUTING.md.

``system`` and ``nightly`` are written at the test. ``process`` is found here: a test starts a program if the test, one
of its fixtures or a helper of theirs uses a module that starts programs. All other tests are ``core``; there, starting
a program fails.

Every nightly test has a short form in another lane: a case of the same test, or a test that the mark names with
``nightly(short="test_y")`` in the same file or ``nightly(short="tests/test_x.py::test_y")``. ``--lint-lanes`` checks
this.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import pytest

FACTOR = int(os.environ.get("TEST_TIMEOUT_FACTOR", "1"))
"""Factor of all time limits, for a machine or a way of running the tests that is many times slower."""
SECONDS = {
    lane: FACTOR * seconds for lane, seconds in {"core": 60, "process": 300, "system": 300, "nightly": 1_800}.items()
}
"""Time limit of a test in each lane."""
PROGRAM_MODULES = {
    "benchmarks.frontier",
    "benchmarks.lookup",
    "benchmarks.selection",
    "benchmarks.serving.budget",
    "benchmarks.serving.peers.catalog",
    "benchmarks.training.__main__",
    "benchmarks.training.growth",
    "multiprocessing",
    "pipelines.bench.harness",
    "benchmarks.serving.overload",
    "pipelines.bench.server_process",
    "pipelines.engines",
    "pipelines.jobs.demo",
    "pipelines.tuning.workers",
    "requirements.lock",
    "requirements.sbom",
    "service.server.supervisor",
    "subprocess",
    "torch.multiprocessing",
}
"""Modules whose functions start programs."""


@pytest.fixture
def programs() -> None:
    """Put a test into the lane ``process`` whose program is started by a part that PROGRAM_MODULES does not name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lint-lanes", action="store_true", help="check that every test runs in the lanes that it needs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known: dict[int, bool] = {}
    for item in items:
        written = {mark.name for mark in item.iter_markers() if mark.name in SECONDS}
        if not written <= {"system", "nightly"}:
            raise pytest.UsageError(f"{item.nodeid}: is marked {sorted(written)}; write 'system', 'nightly' or neither")
        lane = "nightly" if "nightly" in written else "system" if written else _lane_by_use(item, known)
        if not written:
            item.add_marker(lane)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS[lane]))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--lint-lanes"):
        errors = [*_without_short_form(session.items), *_never_collected(session)]
        if errors:
            raise pytest.UsageError("\n".join(errors))


def _without_short_form(items: list[pytest.Item]) -> Iterator[str]:
    """Yield an error for each nightly test that has no short form in another lane."""
    short = {item.nodeid.partition("[")[0] for item in items if not item.get_closest_marker("nightly")}
    marks = {item.nodeid.partition("[")[0]: item.get_closest_marker("nightly") for item in items}
    for test in sorted(marks.keys() - short):
        mark = marks[test]
        assert mark is not None
        named = str(mark.kwargs.get("short"))
        if not {named, f"{test.partition('::')[0]}::{named}"} & short:
            yield f"{test}: its short form {named!r} is not a test of another lane; write nightly(short='FILE::TEST')"


def _never_collected(session: pytest.Session) -> Iterator[str]:
    """Yield an error for each file that contains tests but is not collected because of its name."""
    collected = {item.path for item in session.items}
    root = session.config.rootpath
    for folder in session.config.getini("testpaths"):
        for path in sorted((root / folder).rglob("*.py")):
            if path not in collected and re.search(r"^(?:async )?def test_", path.read_text(), re.MULTILINE):
                yield f"{path.relative_to(root)}: contains tests that run in no lane; name it test_*.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no test of the lane ``core`` start a program."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("core"):
            patch.setattr(subprocess.Popen, "__init__", _fail)
            patch.setattr(BaseProcess, "start", _fail)
            patch.setattr(os, "fork", _fail)
        return (yield)


def _fail(*args: object, **options: object) -> NoReturn:
    pytest.fail(f"a test of the lane 'core' starts a program: {args[1:]}; see tests/lanes.py")


def _lane_by_use(item: pytest.Item, known: dict[int, bool]) -> str:
    """Return ``process`` if the test or one of its fixtures uses a module that starts programs, else ``core``."""
    assert isinstance(item, pytest.Function)
    test = getattr(item.obj, "hypothesis", None)
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [test.inner_test if test else item.obj, *(definitions[-1].func for definitions in fixtures.values())]
    starts = programs.__name__ in fixtures or any(_uses_programs(function, known) for function in functions)
    return "process" if starts else "core"


def _uses_programs(value: Any, known: dict[int, bool]) -> bool:
    """Return whether a module, or a function or class of the tests, starts programs or uses one that does."""
    value = inspect.unwrap(value) if callable(value) else value
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if module in PROGRAM_MODULES:
        return True
    if str(module).partition(".")[0] != "tests" or id(value) in known:
        return known.get(id(value), False)
    known[id(value)] = False  # ends recursion
    if isinstance(value, type):
        members = [getattr(member, "__func__", member) for member in vars(value).values()]
        used: list[Any] = [*value.__bases__, *(getattr(member, "fget", member) for member in members)]
    else:
        function = getattr(value, "__func__", value)
        used = _globals(function) if isinstance(function, FunctionType) else []
    known[id(value)] = any(_uses_programs(part, known) for part in used)
    return known[id(value)]


def _globals(function: FunctionType) -> list[Any]:
    """Return the modules, functions and classes that a function names."""
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    names = {name for code in codes for name in code.co_names}
    return [function.__globals__[name] for name in sorted(names & function.__globals__.keys())]
