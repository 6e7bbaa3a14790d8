"""The chart's objects, rendered by Helm itself.

As a program it calls Helm, whose library is written in Go: a process of its own keeps Go's runtime out of the tests'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm"


class RenderError(Exception):
    """Helm refused; in its own words."""


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that ``helm template ranker`` prints with these values beside the chart's own.

    Raises:
        RenderError: the values or a template are wrong.
    """
    command = [sys.executable, __file__, json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr)
    return [document for text in json.loads(done.stdout) for document in yaml.safe_load_all(text) if document]


def main(values: str) -> None:
    """Prints the rendered files, a JSON array of texts."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        given = json.loads(values)
        try:
            chart.validate_schema(given)
            files = chart.render(given, name="ranker", namespace="feed")
        except helm_python.HelmError as error:
            sys.exit(str(error))
    print(json.dumps([text for path, text in sorted(files.items()) if path.endswith(".yaml")]))


if __name__ == "__main__":
    main(sys.argv[1])
