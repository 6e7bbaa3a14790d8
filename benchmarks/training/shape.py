"""Model shape and settings that all contenders share."""

EXPERTS = 8
EXPERT_LAYERS = (128,)
TOWER_LAYERS = (64,)
BATCH = 2048
LEARNING_RATE = 1e-3

SETTINGS = (
    f"model.experts={EXPERTS}",
    f"model.expert_layers={list(EXPERT_LAYERS)}",
    f"model.tower_layers={list(TOWER_LAYERS)}",
    f"training.batch_size={BATCH}",
    f"training.learning_rate.trunk={LEARNING_RATE}",
    "training.patience=1000000",  # No early stopping: every repeat runs all steps.
)
"""The same as overrides of a ranker.toml."""

WITHOUT_COUNTERS = ("counters=[]", "histories=[]")
"""Overrides that leave out counters and histories, which the other libraries do not have."""
