"""What a failed test leaves behind, so that a stall of the machine can be told from a defect.

A failure prints the load of the machine, the output of the services that the test started, and the ports in use. With
``--keep=FOLDER`` this is also written to a file per failed test, beside ``summary.txt``, which names the failed tests
with their messages and the flaky ones: those that failed in their first try only. ``flaky.json`` lists the latter.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import forget_services, outputs_of_current_test

STATE_AT_START = pytest.StashKey[str]()
LISTENING = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", type=Path, metavar="FOLDER", help="new folder for the evidence of failed tests")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STATE_AT_START] = machine_state()
    folder: Path | None = config.getoption("--keep")
    if folder is not None and not hasattr(config, "workerinput"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config.pluginmanager.register(Keeper(folder))


def pytest_runtest_setup() -> None:
    forget_services()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    if report.failed:
        report.sections.append(("machine", f"{machine_state()}\nlistening ports: {listening_ports()}"))
        report.sections += [(f"output of {name}", output) for name, output in outputs_of_current_test()]
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(f"machine at start: {config.stash[STATE_AT_START]}")
    terminalreporter.write_line(f"machine at end: {machine_state()}")


def machine_state() -> str:
    """Load averages and pressure: the share of the last 10 and 60 seconds in which some process waited."""
    state = [f"load {' '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} CPUs"]
    for resource in ("cpu", "io", "memory"):
        file = Path("/proc/pressure") / resource
        if file.exists():
            averages = re.findall(r"some avg10=(\S+) avg60=(\S+)", file.read_text())
            state += [f"{resource} pressure {ten} % {sixty} %" for ten, sixty in averages]
    return ", ".join(state)


def listening_ports() -> list[int]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENING})


class Keeper:
    """Writes the evidence of failed tests to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: dict[str, str] = {}
        self._retried: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome not in ("failed", "rerun"):
            return
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        message = (lines or report.longreprtext.splitlines() or [""])[0].removeprefix("E").strip()
        if report.outcome == "failed":
            self._failed[report.nodeid] = message
        else:
            load = dict(report.sections)["machine"].partition(",")[0]
            self._retried[report.nodeid] = f"{load}, {message}"
        sections = "\n".join(f"---- {title}\n{text}" for title, text in report.sections)
        name = re.sub(r"[^\w.-]+", "-", report.nodeid)[-150:]
        (self._folder / f"{name}.{report.when}.{report.outcome}.txt").write_text(f"{report.longreprtext}\n{sections}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = report.longreprtext.strip().rpartition("\n")[2]

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        flaky = {test: message for test, message in self._retried.items() if test not in self._failed}
        lines = [f"FLAKY {test} ({message})" for test, message in flaky.items()]
        for line in lines:
            terminalreporter.write_line(line)
        lines += [f"FAILED {test} - {message}" for test, message in self._failed.items()]
        (self._folder / "summary.txt").write_text("".join(f"{line}\n" for line in lines))
        (self._folder / "flaky.json").write_text(json.dumps(flaky, indent=2) + "\n")
