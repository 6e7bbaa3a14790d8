"""Logs: adapters that write them, and the reader that cleans, completes and splits them."""
