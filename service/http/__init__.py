"""The HTTP API: the gateway, routes, message formats and API keys."""
