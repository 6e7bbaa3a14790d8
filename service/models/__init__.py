"""Versions of models: loaded in the background, swapped atomically, drained; split and compared while they serve."""
