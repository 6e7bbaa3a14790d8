"""Counters and histories of every impression of a log, computed from the impressions before it."""
