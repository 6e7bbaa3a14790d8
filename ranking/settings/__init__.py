"""Settings of a model, as users write them in ``ranker.toml``.

These modules do not need PyTorch, so that commands that only read logs start without it.
"""
