"""Look up encoded features by id in memory-mapped files."""
