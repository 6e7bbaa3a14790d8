"""``ranker report``: what a run folder holds, as one HTML page that needs nothing else."""
