"""Adapters that convert or generate impression logs."""
