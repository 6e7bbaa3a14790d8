"""Look up encoded features by id in arrays that processes share."""
