"""Training runs: the run folder, provenance, experiment trackers."""
