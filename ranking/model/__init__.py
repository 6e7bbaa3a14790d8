"""The dense multi-gate mixture of experts."""
