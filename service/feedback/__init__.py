"""What users did with what was ranked: lines of files, for the next training log."""
