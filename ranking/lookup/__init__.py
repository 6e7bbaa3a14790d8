"""Feature lookup by id from memory-mapped files."""
