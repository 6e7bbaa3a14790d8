"""API keys: their file, the valid keys, and the check of requests."""
