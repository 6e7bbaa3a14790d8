"""The served log: answered requests and the features used, in Parquet files. Its format, its writer and its reader."""
