"""Adapters that write impression logs."""
