"""Quality measures of scores with bootstrap intervals over users; definitions in docs/evaluation.md."""

from ranking.metrics.binary import CURVE_BINS, auc, binary_measures, calibration_curve
from ranking.metrics.bootstrap import UserDraws, interval
from ranking.metrics.labeled_scores import Array, Ids, LabeledScores
from ranking.metrics.regression import regression_measures

__all__ = [
    "CURVE_BINS",
    "Array",
    "Ids",
    "LabeledScores",
    "UserDraws",
    "auc",
    "binary_measures",
    "calibration_curve",
    "interval",
    "regression_measures",
]
