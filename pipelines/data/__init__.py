"""Reading of Parquet logs and side tables: schema checks, cleaning, deduplication, indexing and time splits."""
