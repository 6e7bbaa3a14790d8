"""The ``ranker`` command line."""
