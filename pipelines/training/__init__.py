"""Training: batches, the gate schedule, the training loop, checkpoints."""
