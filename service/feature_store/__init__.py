"""Features by id from a store that several programs share and refresh, beside the tables of the bundles."""
