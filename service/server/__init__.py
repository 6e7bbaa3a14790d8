"""Connections with limits, admission, supervision of processes, and shutdown."""
