"""A bundle as an MLflow model, for registries, ``mlflow.pyfunc.spark_udf`` and ``mlflow models serve``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from ranking.artifacts.bundle import load
from ranking.errors import InvalidInputError, single_line
from ranking.frozen.ranker import FrozenRanker


def pyfunc_arguments(bundle: str | Path) -> dict[str, Any]:
    """Return the arguments with which ``mlflow.pyfunc.save_model`` and ``log_model`` store a bundle.

    ``predict`` of the stored model takes a DataFrame of candidates and returns one with a column per task and
    ``score``, as ``FrozenRanker.score`` does for a table.

    Args:
        bundle: folder of the bundle.

    Raises:
        BundleError: the bundle is damaged.
    """
    load(bundle)
    return {
        "loader_module": __name__,
        "data_path": str(bundle),
        "pip_requirements": [f"dselect-ranker[torch]=={version('dselect-ranker')}", "mlflow", "pandas"],
    }


def _load_pyfunc(path: str) -> _Model:
    """Load a stored model; MLflow calls this function of ``loader_module``."""
    return _Model(load(path))


class _Model:
    def __init__(self, ranker: FrozenRanker) -> None:
        self._ranker = ranker

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Return the scores of a DataFrame as a DataFrame with the same index.

        Raises:
            InvalidInputError: a column is missing, occurs twice or has values of several types.
        """
        try:
            table = pa.Table.from_pandas(rows, preserve_index=False)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInputError("rows", single_line(error)) from None
        return self._ranker.score(table).to_pandas().set_index(rows.index)
