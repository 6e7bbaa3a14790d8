"""The shared feature store as commands write it: connection, counters, and users that were forgotten."""
