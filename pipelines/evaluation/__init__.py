"""Offline evaluation of runs and bundles: predictions, metrics, comparisons and promotion checks."""
