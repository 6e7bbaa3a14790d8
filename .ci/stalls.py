"""Run a command on a machine that stops for seconds: ``python .ci/stalls.py make test``.

Every 5 to 10 s, all processes that the command has started are stopped for 1.5 s at once, as on a virtual machine that
its host suspends. A test that fails only then depends on the machine. The exit code is that of the command.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STALL_SECONDS = 1.5
PAUSE_SECONDS = (5.0, 10.0)


def descendants(pid: int) -> list[int]:
    """Return a process and everything that it has started, also in other sessions."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, children.read_text().split())
    return pids


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, such as by a test; it must stay so."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> int:
    """Run the command of the command line with stalls, and return its exit code."""
    command = subprocess.Popen(sys.argv[1:])
    stalls = 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = command.wait(random.uniform(*PAUSE_SECONDS))
            print(f"{stalls} stalls of {STALL_SECONDS} s", file=sys.stderr)
            return code
        pids = [pid for pid in descendants(command.pid) if not is_stopped(pid)]
        send(pids, signal.SIGSTOP)
        time.sleep(STALL_SECONDS)
        send(pids, signal.SIGCONT)
        stalls += 1


if __name__ == "__main__":
    sys.exit(main())
