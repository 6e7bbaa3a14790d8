"""Offline pipelines and the ``ranker`` command line: logs, training, evaluation, publication and tuning."""
