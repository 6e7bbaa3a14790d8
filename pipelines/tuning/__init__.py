"""Hyperparameter search: search space, study folder, trials, and worker processes."""
