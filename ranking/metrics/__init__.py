"""Quality measures of scores with bootstrap intervals; definitions in docs/evaluation.md."""

from ranking.metrics.binary import BINARY_MEASURES, CURVE_BINS, auc, auc_draws, binary_measures, calibration_curve
from ranking.metrics.bootstrap import FEW_UNITS, MIN_UNITS, UnitDraws, interval, interval_units
from ranking.metrics.labeled_scores import Array, Ids, LabeledScores
from ranking.metrics.regression import regression_measures
from ranking.metrics.units import SamplingUnits

__all__ = [
    "BINARY_MEASURES",
    "CURVE_BINS",
    "FEW_UNITS",
    "MIN_UNITS",
    "Array",
    "Ids",
    "LabeledScores",
    "SamplingUnits",
    "UnitDraws",
    "auc",
    "auc_draws",
    "binary_measures",
    "calibration_curve",
    "interval",
    "interval_units",
    "regression_measures",
]
