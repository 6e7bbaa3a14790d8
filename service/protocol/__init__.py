"""Messages, problems and headers of the HTTP API."""
