"""Permutation importance: how much worse a model predicts when the values of a feature are shuffled among rows."""
