"""The request path behind the API."""
