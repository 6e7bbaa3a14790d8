"""What is made of pip-audit's findings: never a clean bill for packages that nobody looked up."""

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
    ("packages", "status", "said"),
    [
        ([CLEAN, CLEAN], 0, "2 packages, no known vulnerability"),
        ([CLEAN, VULNERABLE, SKIPPED], 1, "idna 2.0: PYSEC-1, mended in 3.7"),
        ([CLEAN, SKIPPED], 3, "NOT AUDITED: 1 of 2 packages"),
        ([], 3, "NOT AUDITED"),
        (None, 3, "NOT AUDITED"),
    ],
)
def test_what_it_is_worth(packages: Any, status: int, said: str) -> None:
    report = "" if packages is None else json.dumps({"dependencies": packages})
    for options, expected in (([], status), (["--if-possible"], 0 if status == 3 else status)):
        result = subprocess.run(
            [sys.executable, str(AUDIT), *options], input=report, capture_output=True, text=True, check=False
        )
        assert result.returncode == expected
        assert said in result.stdout
