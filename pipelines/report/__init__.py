"""``ranker report``: a self-contained HTML page that summarizes a run folder."""
