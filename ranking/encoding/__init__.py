"""Encoding: Arrow columns to NumPy batches."""
