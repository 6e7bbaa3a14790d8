"""Jobs: one module per command of the command line."""
