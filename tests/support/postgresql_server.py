"""A PostgreSQL server for tests, on a free port; it does not outlive the test and does not sync its files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pg8000
import pytest

from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_until

USER, PASSWORD = "tuner", "p@ss{word}"
"""A superuser, and a password with characters that URLs and templates must escape."""
URL_PASSWORD = "p%40ss%7Bword%7D"
DEBIAN = Path("/usr/lib/postgresql")
"""Folder of the programs in Debian, which are not in the PATH."""


class PostgresqlServer:
    """A server that can be stopped and started again.

    Args:
        programs: folder of initdb and postgres.
        folder: empty folder of the server.

    Attributes:
        port: port of the server.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._data, self.port = programs, folder / "data", free_port()
        # The server does not run as root.
        self._user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "postgres", "postgres")
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        options = ["--username", USER, "--pwfile", folder / "password", "--auth", "scram-sha-256", "--no-sync"]
        command = [programs / "initdb", "--pgdata", self._data, *options, "--no-instructions", "--encoding", "UTF8"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **self._user)
        self.start()

    def start(self) -> None:
        settings = {"listen_addresses": HOST, "port": self.port, "fsync": "off", "unix_socket_directories": ""}
        settings["timezone"] = "Asia/Kolkata"  # Heartbeats must not depend on it.
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self._data, *options]
        with (self._data / "log").open("a") as log:
            self._process = subprocess.Popen(command, cwd=self._data, stderr=log, **self._user)
        wait_until(self._accepts, "the PostgreSQL server accepts connections")

    def stop(self) -> None:
        """Stop the server and end its connections."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Execute a statement outside of a transaction."""
        with closing(pg8000.connect(USER, HOST, database, self.port, PASSWORD, ssl_context=False)) as connection:
            connection.autocommit = True
            connection.cursor().execute(statement)

    def url(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql://{USER}:{URL_PASSWORD}@{HOST}:{self.port}/{database}"

    def _accepts(self) -> bool:
        assert self._process.poll() is None, (self._data / "log").read_text()
        try:
            self.execute("SELECT 1")
        except (pg8000.Error, OSError):
            return False
        return True


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run a server; skip the test if PostgreSQL is not installed, or fail it in CI."""
    initdb = shutil.which("initdb", path=os.pathsep.join(map(str, [*DEBIAN.glob("*/bin"), os.environ["PATH"]])))
    if initdb is None:
        message = "initdb is not installed (Debian: postgresql)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresqlServer(Path(initdb).parent, Path(folder))
        try:
            yield server
        finally:
            server.stop()
