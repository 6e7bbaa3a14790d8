"""Online feature store: features by id, shared by several programs and fresher than the tables of the bundles."""
