"""Inspection of a log: its profile, errors and warnings, label bounds and suggested counters."""
