"""``ranker bench``: measures scoring and serving of a bundle on this machine."""
