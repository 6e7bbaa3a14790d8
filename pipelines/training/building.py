"""Makes the dense model: untrained for an encoder, or with the best weights of a run. Needs TorchRec."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load_file

from pipelines.config import Config
from pipelines.run_folder import RunFolder
from ranking.embeddings import Embeddings
from ranking.encoding import Encoder
from ranking.errors import LogError
from ranking.model import Mixture


def build_model(config: Config, encoder: Encoder) -> Mixture:
    """An untrained model for what the encoder gives."""
    schema = encoder.schema
    embeddings = Embeddings(schema, {name: space.size for name, space in encoder.id_spaces.items()})
    gamma = config.training.convergence.gamma
    return Mixture(config.model, len(schema.tasks), embeddings, encoder.dense_size, gamma)


def load_model(run: RunFolder, config: Config) -> tuple[Mixture, Encoder]:
    """A run's best weights, ready to score, and the encoder that they were trained with.

    Raises:
        LogError: a file of the run is damaged.
    """
    try:
        encoder = Encoder.read(run.encoder, config.schema_only)
        weights = load_file(run.best)
        model = build_model(config, encoder)
        model.gate = model.gate.ordinary()  # only weights with a final choice are kept
        model.keep_experts(weights["active"].tolist())
        model.load_state_dict(weights)
    except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
        raise LogError(f"{run.path}: the run is damaged, or of another version ({error}); train again") from error
    return model.eval(), encoder
