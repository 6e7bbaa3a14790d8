"""Tests of ``.ci/audit.py``: packages that pip-audit could not look up are never reported as clean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit.py"
CLEAN = {"name": "idna", "version": "3.20", "vulns": []}
VULNERABLE = {"name": "idna", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.7"]}]}
SKIPPED = {"name": "zipp", "skip_reason": "Dependency not found on PyPI and could not be audited: zipp (4.1.2)"}


@pytest.mark.parametrize(
    ("packages", "exit_status", "message"),
    [
        pytest.param([CLEAN, CLEAN], 0, "2 packages, no known vulnerability", id="all clean"),
        pytest.param([CLEAN, VULNERABLE, SKIPPED], 1, "idna 2.0: PYSEC-1, fixed in 3.7", id="one vulnerable"),
        pytest.param([CLEAN, SKIPPED], 3, "NOT AUDITED: 1 of 2 packages", id="one skipped"),
        pytest.param([], 3, "NOT AUDITED", id="no packages"),
        pytest.param(None, 3, "NOT AUDITED", id="no report"),
    ],
)
def test_audit_report_determines_exit_status_and_message(packages: Any, exit_status: int, message: str) -> None:
    report = "" if packages is None else json.dumps({"dependencies": packages})
    for options, expected in (([], exit_status), (["--if-possible"], 0 if exit_status == 3 else exit_status)):
        result = subprocess.run(
            [sys.executable, str(AUDIT), *options], input=report, capture_output=True, text=True, check=False
        )
        assert result.returncode == expected
        assert message in result.stdout
