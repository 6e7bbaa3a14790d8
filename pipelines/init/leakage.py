"""Search for features that are known only after the impression, by how well each alone predicts a label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelines.inspection.feature_inspection import Association, FeatureInspector
from ranking.encoding.feature_table import fill_features
from ranking.schema import Schema

SUSPICIOUS_AUC = 0.9
"""A feature that alone predicts a binary label with at least this AUC may be known only after the impression."""
SUSPICIOUS_CORRELATION = 0.95
"""The same for a regression: rank correlation."""


def suspicious_features(rows: pa.Table, schema: Schema) -> list[Association]:
    """Return the features that predict a label better than what is known before an impression usually does.

    Args:
        rows: training rows with the columns of all features and labels.
        schema: features and tasks.
    """
    inspector = FeatureInspector(schema)
    inspector.add(fill_features(rows, schema, {}), np.arange(len(rows)))
    return [found for found in inspector.associations() if _is_suspicious(found)]


def _is_suspicious(found: Association) -> bool:
    return found.strength >= (SUSPICIOUS_AUC if found.task.kind == "binary" else SUSPICIOUS_CORRELATION)
