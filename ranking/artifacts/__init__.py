"""Bundles, repositories and releases on disk."""
