"""Results of commands on stdout."""

from __future__ import annotations

import json
from typing import Any


def dump_json(data: dict[str, Any]) -> str:
    """Return a result as JSON text."""
    return json.dumps(data, indent=2)
