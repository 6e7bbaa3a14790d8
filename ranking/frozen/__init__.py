"""The frozen ranker: selected experts only."""
