"""Search for settings: ranges, the study on disk, one trial, and the workers that run them."""
