"""Commands that are killed before a chosen change of a file, in forks of a process that has imported their modules."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from pipelines.cli.main import main
from tests.support.file_changes import call_before_changes


class KilledRanker:
    """Runs ``ranker`` commands, see ``killed_ranker``.

    Attributes:
        folder: folder in which changes of files count.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder = process, folder

    def run(self, *argv: object, change: int = 0) -> bool:
        """Run a command and return whether it was killed; otherwise, it must succeed.

        Args:
            argv: arguments of ``ranker``.
            change: number of the change, from 1, before which the command is killed; 0 if it is not killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([change, *map(str, argv)]), file=self._process.stdin, flush=True)
        exit_code = int(self._process.stdout.readline())
        assert exit_code in (0, -signal.SIGKILL), f"ranker {argv}: exit code {exit_code}"
        return exit_code != 0


@contextmanager
def killed_ranker(folder: Path, *modules: str) -> Iterator[KilledRanker]:
    """Start a process that imports these modules and runs commands; changes in ``folder`` count."""
    command = [sys.executable, "-m", "tests.pipelines.killed_ranker", str(folder), *modules]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], text=True, **pipes) as process:
        yield KilledRanker(process, folder)


def _run_commands(folder: str, modules: list[str]) -> None:
    for module in modules:
        import_module(module)
    for line in sys.stdin:
        change, *argv = json.loads(line)
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _kill_before(folder, change)
            os._exit(main(argv))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _kill_before(folder: str, change: int) -> None:
    """Kill this process before it changes a file below a folder for the n-th time."""
    numbers = itertools.count(1)

    def kill_at_change() -> None:
        if next(numbers) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    call_before_changes(folder, kill_at_change)


if __name__ == "__main__":
    _run_commands(sys.argv[1], sys.argv[2:])
