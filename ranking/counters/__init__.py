"""Compute the features of counters and histories from sums over earlier impressions."""
