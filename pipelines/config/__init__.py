"""``ranker.toml``: reading, validation and comparison of configurations."""
