"""``ranker.toml``: parsing and validation."""
