"""Training runs on disk."""
