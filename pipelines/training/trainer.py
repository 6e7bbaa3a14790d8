"""The training loop: learn, converge, train the chosen experts on, keep the best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from pipelines.config.config import Config
from pipelines.console import Progress, print_status
from pipelines.runs.run import RunFolder
from pipelines.training import model_state
from pipelines.training.checkpoint import Checkpoint, Checkpoints
from pipelines.training.dataloader import BatchLoader, EpochSlice
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.expert_pruning import distil, keep_experts, narrow
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.labeled_batch import LabeledBatch
from pipelines.training.negative_sampling import downsample_negatives, samples_negatives
from pipelines.training.objective import Objective, Terms, data_parallel
from pipelines.training.optimizer import make_optimizer, rate_factor
from pipelines.training.regularization import Regularization
from pipelines.training.torch_batch import DeviceBatch
from ranking.errors import RankerError
from ranking.gates.config import AttentiveConfig
from ranking.model.losses import FixedWeighting, UncertaintyWeighting, label_weights, task_losses
from ranking.model.mmoe import MMoE

FEW_STEPS = 100
"""Below this a choice of experts is drawn rather than learnt."""

OnCheck = Callable[[dict[str, Any]], None]
"""Called with each line of metrics.jsonl; raising from it stops the training."""


class Trainer:
    """Trains one model.

    Args:
        config: the whole configuration.
        run: where metrics, checkpoints and the best weights go.
        world: the ranks that train together; ``training.batch_size`` is that of all of them.
        feed: the training split.
        validation: the validation split.
        model: the dense model, changed in place.
        chosen: the gate's choice is final from the start: a warm start that keeps it.
        on_check: called on the first rank.

    Attributes:
        convergence: how the gates came to their choice.
        steps: optimiser steps of a whole training.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        world: DistContext,
        feed: BatchLoader,
        validation: BatchLoader,
        model: MMoE,
        *,
        chosen: bool = False,
        on_check: OnCheck | None = None,
    ) -> None:
        self._config, self._settings, self._run, self._world = config, config.training, run, world
        self._feed, self._validation, self._model = feed, validation, model.to(world.device)
        self._on_check = on_check
        self.steps = self._settings.epochs * feed.steps()
        if self.steps < FEW_STEPS and model.gate.concludes and not chosen:
            print_status(
                f"only {self.steps} steps: the gates need a few hundred to choose their experts; "
                "lower training.batch_size or raise training.epochs"
            )
        settings, rates = self._settings, self._settings.learning_rate
        self.convergence = GateSchedule(
            settings.convergence, model.gate, self.steps, config.model.experts_budget, world, chosen=chosen
        )
        penalty = Regularization(config.model.gate, settings.convergence, self.convergence, self.steps)
        self._tables = EmbeddingTables(model.embeddings, rates.embeddings, settings.batch_size // world.size, world)
        uncertain = settings.loss_weighting == "uncertainty"
        weighting = (UncertaintyWeighting if uncertain else FixedWeighting)(config.tasks).to(world.device)
        self._optimiser = make_optimizer(model, settings, weighting)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]
        self._objective = Objective(model, config.tasks, weighting, penalty, settings.precision)
        self._wrapped: nn.Module = data_parallel(self._objective, world)
        self._checkpoints = Checkpoints(run.checkpoints, run.best, world, settings.keep_checkpoints)
        self._task_weights = weighting.weights
        self._step, self._epoch = 0, 0
        self._pieces: list[EpochSlice] | None = None
        self._running, self._since_check, self._clock = self._zeros(), 0, time.monotonic()
        self._best, self._checks_since_best = math.inf, 0
        self._evaluated = torch.zeros(())

    @property
    def experts_evaluated(self) -> float:
        """Experts with a weight above 0 for a task, mean over tasks and the steps so far."""
        return float(self._evaluated) / max(self._step, 1)

    def fit(self) -> None:
        """Trains to the end or until the validation loss stops improving; the best weights lie in the run folder.

        Only weights with a final selection are kept. A check may be followed by a checkpoint, see ``Checkpoints.due``.

        Raises:
            RankerError: the loss became NaN or infinite; the batch is saved.
            OutputError: the run folder cannot be written.
        """
        progress = Progress("training", unit="steps", total=self.steps, done=self._step)
        self._clock, stop = time.monotonic(), False
        while self._epoch < self._settings.epochs and not stop:
            begun, at_start = self._pieces, self._step
            for examples in self._feed.epoch(self._epoch, begun):
                self._step += 1
                terms = self._learn(examples)
                progress.advance(1, f"loss {float(terms.losses @ self._task_weights):.4f}")
                if self._check_is_due():
                    stop = self._check(terms)
                    over = stop or self._step == self.steps
                    if self._checkpoints.due(over=over):
                        self._save(self._feed.remaining(self._epoch, begun, self._step - at_start), over=over)
                    self._clock = time.monotonic()
                    if stop:
                        break
            self._epoch, self._pieces = self._epoch + 1, None
        if self._since_check:  # other ranks than those that began may have shared the rows out in a step less
            self._check(terms)
        progress.close()

    def _check_is_due(self) -> bool:
        """Whether an even share of the epoch's steps is over."""
        checks, steps = self._settings.checks_per_epoch, self._feed.steps()
        return self._step * checks // steps > (self._step - 1) * checks // steps

    def resume(self) -> None:
        """Goes on from the newest whole checkpoint, or from the start; what was told after that moment is forgotten."""
        checkpoint = self._checkpoints.latest()
        if checkpoint is not None:
            self._restore(checkpoint)
        if self._world.first:
            self._checkpoints.restore_best(checkpoint)
            self._run.forget_after(self._step)
        self._world.wait()

    def clean_up(self) -> None:
        """Removes the checkpoints of a training that is over."""
        if self._world.first:
            self._checkpoints.remove()

    def _learn(self, examples: LabeledBatch) -> Terms:
        """One optimiser step."""
        step, settings = self._step, self._settings
        examples = downsample_negatives(
            examples, self._config.tasks, samples_negatives(settings.seed, step, len(examples))
        )
        self._objective.train()
        if self.convergence.before(step):
            self._wrapped = data_parallel(self._objective, self._world)
        self._set_rates()
        terms: Terms = self._wrapped(step, DeviceBatch.from_labeled(examples, self._world.device))
        self._require_finite(terms, examples)
        self._optimiser.zero_grad(set_to_none=True)
        terms.total.backward()
        if settings.clip_norm is not None:
            groups = self._optimiser.param_groups
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], settings.clip_norm)
        self._optimiser.step()
        self._running += terms.losses
        self._since_check += 1
        self._evaluated += (terms.weights > 0).sum(-1).float().mean().cpu()
        if self.convergence.after(step, terms.weights):
            narrow(self._model, self._optimiser, self.convergence, step)
            self._wrapped = data_parallel(self._objective, self._world)
        return terms

    def _set_rates(self) -> None:
        factor = rate_factor(self._step, self.steps, self._settings.warmup, self.convergence.chosen_at)
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._tables.set_rate(self._settings.learning_rate.embeddings * factor)

    def _require_finite(self, terms: Terms, examples: LabeledBatch) -> None:
        """Stops all ranks if the loss of one is NaN or infinite."""
        wrong = not bool(terms.total.isfinite())
        if not self._world.any(wrong):
            return
        file = self._run.bad_batch(self._step, self._world.rank)
        outputs = terms.outputs.cpu().contiguous().numpy()  # as it lies in memory: save_file looks at nothing else
        save_file(examples.arrays() | {"outputs": outputs}, file)
        names = [
            task.name for task, loss in zip(self._config.tasks, terms.losses, strict=True) if not bool(loss.isfinite())
        ]
        if names:
            what, mend = f"the loss of {', '.join(names)}", "lower training.learning_rate or set training.clip_norm"
        elif wrong:
            what, mend = "the penalty on the gate", "lower its weight in model.gate"
        else:
            what, mend = "the loss of another rank", "see its message"
        raise RankerError(f"step {self._step}: {what} is not finite; {mend}. The batch lies in {file}")

    def _check(self, terms: Terms) -> bool:
        """Measures the validation loss, keeps the weights if they are the best; whether to stop."""
        world, names = self._world, self._config.task_names
        seconds = time.monotonic() - self._clock
        train = world.sum(self._running) / world.size / self._since_check
        validation = self._validation_losses()
        total = float(validation @ self._task_weights)
        selected = self.convergence.done
        if selected:
            self._checks_since_best += 1
            if total < self._best:
                self._best, self._checks_since_best = total, 0
                model_state.save_best(self._run, self._model, self._tables)
        weights = terms.weights.flatten(0, -3).mean(0) if terms.weights.dim() == 3 else terms.weights
        line = {
            "step": self._step,
            "epoch": self._step / self._feed.steps(),
            "phase": self.convergence.phase(),
            "gamma": self.convergence.gamma_at(self._step),
            "experts": len(self._model.active),
            "learning_rate": self._optimiser.param_groups[0]["lr"],
            "rows_per_second": round(self._since_check * self._settings.batch_size / seconds),
            "train": dict(zip(names, train.tolist(), strict=True)),
            "validation": dict(zip(names, validation.tolist(), strict=True)),
            "validation_total": total,
            "gate_weights": dict(zip(names, weights.tolist(), strict=True)),
            "best": selected and self._checks_since_best == 0,
        }
        if world.first:
            self._run.log(line)
            if self._on_check is not None:
                self._on_check(line)
        self._running, self._since_check = self._zeros(), 0
        return selected and self._checks_since_best >= self._settings.patience

    @torch.no_grad()
    def _validation_losses(self) -> Tensor:
        """Mean loss of each task over the validation split [tasks]."""
        self._objective.eval()
        total, rows = self._zeros(), self._zeros()
        for examples in self._validation.epoch(0):
            batch = DeviceBatch.from_labeled(examples, self._world.device)
            counts = label_weights(batch.labels, batch.weights)
            outputs = self._model(batch.inputs)
            total += task_losses(outputs, batch.labels, self._config.tasks, batch.weights) * counts
            rows += counts
        rows = self._world.sum(rows)
        return self._world.sum(total) / torch.where(rows > 0, rows, 1.0)

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._config.tasks), device=self._world.device)

    def _tensors(self, optimised: list[str]) -> dict[str, Any]:
        """All that a checkpoint keeps as tensors, by name; the optimiser's for these parameters."""
        return {
            **model_state.trunk_state(self._model),
            **self._tables.state(),
            **{f"weighting.{name}": value for name, value in self._objective.weighting.state_dict().items()},
            **model_state.optimiser_state(self._objective, self._optimiser, optimised),
            "evaluated": self._evaluated,
        }

    def _save(self, pieces: list[EpochSlice], *, over: bool) -> None:
        convergence = self.convergence
        optimised = model_state.optimised(self._objective, self._optimiser)
        state = {
            "epoch": self._epoch,
            "pieces": [list(piece) for piece in pieces],
            "over": over,
            "world": self._world.size,
            "experts": self._model.active.tolist(),
            "distilled": isinstance(self._config.model.gate, AttentiveConfig) and convergence.done,
            "convergence": convergence.state(),
            "best": self._best if math.isfinite(self._best) else None,
            "checks_since_best": self._checks_since_best,
            "optimised": optimised,
        }
        random = {f"random.{self._world.rank}": torch.get_rng_state()}
        self._checkpoints.save(self._step, self._tensors(optimised) | random, state)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Brings everything to where it stood at a checkpoint; written by this many ranks or by others."""
        state, model = checkpoint.state, self._model
        if state["distilled"]:
            distil(model, self._optimiser)
        keep_experts(model, self._optimiser, state["experts"])
        random = {f"random.{self._world.rank}": torch.get_rng_state()} if state["world"] == self._world.size else {}
        checkpoint.load(self._tensors(state["optimised"]) | random)
        for generator in random.values():
            torch.set_rng_state(generator)
        self.convergence.restore(state["convergence"], model.gate)
        self._step, self._epoch = state["step"], state["epoch"]
        self._pieces = [EpochSlice(*piece) for piece in state["pieces"]]
        if state["over"]:
            self._epoch = self._settings.epochs
        self._best = math.inf if state["best"] is None else state["best"]
        self._checks_since_best = state["checks_since_best"]
        self._wrapped = data_parallel(self._objective, self._world)
        print_status(f"resumed at step {self._step:,} of {self.steps:,}")
