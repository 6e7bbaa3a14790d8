"""The ranking service: a bundle in, ranked candidates over HTTP out."""
