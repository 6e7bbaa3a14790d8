"""Model versions: background loading, atomic replacement, canary routing and shadow comparison."""
