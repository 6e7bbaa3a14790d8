"""Metrics, logs, traces and stage times of the service and its requests."""
