"""Store bundles, repositories and releases on disk."""
