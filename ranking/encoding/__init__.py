"""Encode Arrow columns as arrays of embedding rows and numbers."""
