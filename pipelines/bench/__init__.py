"""``ranker bench``: measures the service with a bundle on this machine."""
