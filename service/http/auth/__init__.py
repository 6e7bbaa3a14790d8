"""Who may do what: API keys, the port of operations, and when either is needed."""
