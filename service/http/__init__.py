"""HTTP: messages and routes."""
