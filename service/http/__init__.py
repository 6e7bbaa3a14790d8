"""The HTTP API: routes, message formats, middleware and API keys."""
