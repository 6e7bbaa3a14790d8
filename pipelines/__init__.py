"""Everything offline: logs in, bundle out."""
