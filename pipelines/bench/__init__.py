"""``ranker bench``: what scoring and serving a bundle cost on this machine, beside what else could do it."""
