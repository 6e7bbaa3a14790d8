"""Feedback on ranked items: checked, and written to JSON Lines files by one thread per process."""
