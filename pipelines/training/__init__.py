"""Training: examples, convergence of the gates, the loop."""
