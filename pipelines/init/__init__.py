"""First configuration for a log: guesses of columns, features and tasks, each with its reason."""
