"""The ``ranker`` command, called in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from pipelines.cli.main import main


def ranker(*argv: object) -> tuple[int, str, str]:
    """Run ``ranker``; return its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue(), err.getvalue()
