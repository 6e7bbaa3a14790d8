"""One shape for all contenders."""

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
    "training.patience=1000000",  # every repeat does all its steps
)
"""The same as overrides of a ranker.toml."""
