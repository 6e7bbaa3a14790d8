"""API keys: their file, the valid keys, and the middleware that checks them."""
