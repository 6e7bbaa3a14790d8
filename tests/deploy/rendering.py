"""Renders the Helm chart with Helm's own library.

The library is written in Go. Running this module as a script in a separate process keeps the Go runtime out of the test
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
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
        RenderError: the values or a template are invalid.
    """
    (result,) = render_charts([values])
    if isinstance(result, RenderError):
        raise result
    return result


def render_charts(variants: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]] | RenderError]:
    """Render the chart with each of several values in one process; see ``render_chart``."""
    result = subprocess.run([sys.executable, __file__], input=json.dumps(variants), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [
        RenderError(rendered)
        if isinstance(rendered, str)
        else [document for text in rendered for document in yaml.load_all(text, yaml.CSafeLoader) if document]
        for rendered in json.loads(result.stdout)
    ]


def validate_object(manifest: dict[str, Any], version: str) -> None:
    """Check an object against the schema of a version of Kubernetes.

    Raises:
        ValueError: it has an unknown field, or a value of the wrong type.
    """
    import kubernetes_validate  # takes 3 s, which each test process would spend

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(str(error)) from None


def main() -> None:
    """Read a JSON array of values; print an array with the rendered files or the error message of each."""
    import helm_python

    results: list[list[str] | str] = []
    with helm_python.Chart.load(CHART) as chart:
        for values in json.load(sys.stdin):
            try:
                chart.validate_schema(values)
                files = chart.render(values, name="ranker", namespace="feed")
                results.append([text for path, text in sorted(files.items()) if path.endswith(".yaml")])
            except helm_python.HelmError as error:
                results.append(str(error))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
