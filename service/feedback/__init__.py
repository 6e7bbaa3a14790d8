"""Feedback on ranked items: written to JSON Lines files by one thread per process."""
