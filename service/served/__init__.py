"""The served log: answered requests and the features used, in Parquet files that one thread per process writes."""
