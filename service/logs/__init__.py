"""Logs of a service, each written by one thread per process: the served log, and feedback on ranked items."""
