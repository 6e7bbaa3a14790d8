"""Renders the Helm chart with Helm's own library.

The library is written in Go. Running this module as a script in a separate process keeps the Go runtime out of the test
process.
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
    """Helm rejected the values or a template. The message is that of Helm."""


def render_chart(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that ``helm template ranker`` prints, with these values merged into the defaults of the chart.

    Raises:
        RenderError: The values or a template are invalid.
    """
    command = [sys.executable, __file__, json.dumps(values)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RenderError(result.stderr)
    return [document for text in json.loads(result.stdout) for document in yaml.safe_load_all(text) if document]


def validate_object(manifest: dict[str, Any], version: str) -> None:
    """Check an object against the schema of a version of Kubernetes.

    Raises:
        ValueError: It has an unknown field, or a value of the wrong type.
    """
    import kubernetes_validate  # takes 3 s, which each test process would spend

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(str(error)) from None


def main(values_json: str) -> None:
    """Print the rendered files as a JSON array of strings."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        values = json.loads(values_json)
        try:
            chart.validate_schema(values)
            files = chart.render(values, name="ranker", namespace="feed")
        except helm_python.HelmError as error:
            sys.exit(str(error))
    print(json.dumps([text for path, text in sorted(files.items()) if path.endswith(".yaml")]))


if __name__ == "__main__":
    main(sys.argv[1])
