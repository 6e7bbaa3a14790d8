"""The training loop: learn, converge, train the chosen experts on, keep the best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.config import Config
from pipelines.logs.reader import LogReader
from pipelines.progress import Progress, say
from pipelines.run_folder import RunFolder
from pipelines.training.convergence import Convergence
from pipelines.training.examples import Examples, batches, read
from pipelines.training.optimiser import forget_gate, keep_experts, make_optimiser, replace_gate
from pipelines.training.regularisation import Regularisation
from ranking.encoding import Encoder
from ranking.errors import RankerError
from ranking.losses import task_losses
from ranking.model import Mixture

FEW_STEPS = 100
"""Below this a choice of experts is drawn rather than learnt."""


class Trainer:
    """Trains one model.

    Args:
        config: the whole configuration.
        run: where metrics and the best weights go.
        reader: the log.
        encoder: fitted on the training split.
        model: the dense model, changed in place.
        train_rows: rows of the training split.
        on_check: gets each line of metrics.jsonl; what it raises stops the training.

    Attributes:
        convergence: how the gates came to their choice.
        steps: optimiser steps of a whole training.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        reader: LogReader,
        encoder: Encoder,
        model: Mixture,
        train_rows: int,
        on_check: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._config, self._settings, self._on_check = config, config.training, on_check
        self._run, self._reader, self._encoder, self._model = run, reader, encoder, model
        full, rest = divmod(train_rows, self._settings.batch_size)
        self._steps_per_epoch = full + (rest > 1)  # batch norm needs two rows
        self.steps = self._settings.epochs * self._steps_per_epoch
        if self.steps < FEW_STEPS and model.gate.concludes:
            say(
                f"only {self.steps} steps: the gates need a few hundred to choose their experts; "
                "lower training.batch_size or raise training.epochs"
            )
        gate = config.model.gate
        budget = config.model.experts_budget
        self.convergence = Convergence(self._settings.convergence, model.gate, self.steps, budget)
        self._penalty = Regularisation(gate, self._settings.convergence, self.convergence, self.steps)
        self._optimiser = make_optimiser(model, self._settings)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]
        self._weights = torch.tensor([task.weight for task in config.tasks])
        self._best, self._checks_since_best = math.inf, 0
        self._evaluated, self._steps_done = torch.zeros(()), 0

    @property
    def experts_evaluated(self) -> float:
        """Experts with a weight above 0 for a task, mean over tasks and the steps so far."""
        return float(self._evaluated) / max(self._steps_done, 1)

    def fit(self) -> None:
        """Trains to the end or until the validation loss stops improving; the best weights lie in the run folder.

        Only weights with a final selection are kept.

        Raises:
            RankerError: the loss became NaN or infinite.
        """
        progress = Progress("training", unit="steps", total=self.steps)
        check_every = max(1, self._steps_per_epoch // self._settings.checks_per_epoch)
        running, since_check, start = torch.zeros(len(self._weights)), 0, time.monotonic()
        for step, examples in enumerate(self._training_batches(), start=1):
            losses = self._step(step, examples)
            running += losses
            since_check += 1
            progress.advance(1, f"loss {float(losses @ self._weights):.4f}")
            if step % check_every == 0 or step == self.steps:
                rate = since_check * self._settings.batch_size / (time.monotonic() - start)
                stop = self._check(step, running / since_check, rate)
                running, since_check, start = torch.zeros(len(self._weights)), 0, time.monotonic()
                if stop:
                    break
        progress.close()

    def _training_batches(self) -> Iterator[Examples]:
        settings = self._settings
        for epoch in range(settings.epochs):
            random = np.random.default_rng((settings.seed, epoch))
            stream = read(self._reader, self._config.logs, self._encoder, "train", random)
            for examples in batches(stream, settings.batch_size, settings.shuffle_rows, random):
                if len(examples) > 1:
                    yield examples

    def _step(self, step: int, examples: Examples) -> Tensor:
        """One optimiser step; the data loss of each task, without penalties."""
        self._model.train()
        self.convergence.before(step)
        self._decay(step)
        done = self._model.trace(examples.inputs)
        losses = task_losses(done.outputs, examples.labels, self._config.tasks)
        loss = losses @ self._weights + self._penalty(step, self._model.gate, done)
        if not bool(loss.isfinite()):
            worst = [
                task.name for task, value in zip(self._config.tasks, losses, strict=True) if not bool(value.isfinite())
            ]
            if not worst:
                raise RankerError(f"step {step}: the penalty on the gate is not finite; lower its weight in model.gate")
            raise RankerError(
                f"step {step}: the loss of {', '.join(worst)} is not finite; lower training.learning_rate"
            )
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._optimiser.step()
        weights = done.routing.weights.detach()
        self._evaluated += (weights > 0).sum(-1).float().mean()
        self._steps_done += 1
        if self.convergence.after(step, weights):
            self._narrow(step)
        return losses.detach()

    def _decay(self, step: int) -> None:
        """Lets every learning rate fall linearly to 0 once the experts are chosen."""
        left = (self.steps - step + 1) / max(1, self.steps - self.convergence.last_step)
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * min(1.0, left)

    def _narrow(self, step: int) -> None:
        """Goes on with the experts that are left, and with the final choice among them once it is made."""
        model, convergence = self._model, self.convergence
        ordinary = model.gate.ordinary()
        if ordinary is not model.gate:
            replace_gate(model, self._optimiser, ordinary)
            model.experts.requires_grad_(False)
            say(f"step {step}: the gate is distilled into one that serves; experts are fixed from here")
            return
        keep_experts(model, self._optimiser, convergence.experts)
        left = f"{len(convergence.experts)} of {model.gate.num_experts} experts"
        if not convergence.done:
            forget_gate(model, self._optimiser)
            say(f"step {step}: the budget leaves {left}; only these train on")
            return
        if convergence.snapped_codes:
            say(
                f"step {step}: {convergence.snapped_codes} selectors were not binary when the ramp ended and were "
                "snapped; more steps, a longer ramp or a larger training.learning_rate.gates lets them choose"
            )
        if model.gate.per_example:
            say(f"step {step}: the choice is exact for every example, at most {model.gate.k} experts a task")
        else:
            say(
                f"step {step}: the gates chose {left} (binary since step {convergence.binary_at_step}); "
                "only these train on"
            )

    def _check(self, step: int, train_losses: Tensor, rows_per_second: float) -> bool:
        """Measures the validation loss, keeps the weights if they are the best; whether to stop."""
        validation = self._validation_losses()
        total = float(validation @ self._weights)
        names = self._config.task_names
        selected = self.convergence.done
        if selected:
            self._checks_since_best += 1
            if total < self._best:
                self._best, self._checks_since_best = total, 0
                self._run.save_best(self._model)
        record = {
            "step": step,
            "epoch": step / self._steps_per_epoch,
            "phase": self.convergence.phase(),
            "gamma": self.convergence.gamma_at(step),
            "experts": len(self._model.active),
            "rows_per_second": round(rows_per_second),
            "train": dict(zip(names, train_losses.tolist(), strict=True)),
            "validation": dict(zip(names, validation.tolist(), strict=True)),
            "validation_total": total,
            "best": selected and self._checks_since_best == 0,
        }
        self._run.log(record)
        if self._on_check is not None:
            self._on_check(record)
        return selected and self._checks_since_best >= self._settings.patience

    @torch.no_grad()
    def _validation_losses(self) -> Tensor:
        """Mean loss of each task over the validation split [tasks]."""
        self._model.eval()
        total, rows = torch.zeros(len(self._weights)), torch.zeros(len(self._weights))
        stream = read(self._reader, self._config.logs, self._encoder, "validation")
        for examples in batches(stream, self._settings.batch_size):
            known = (~examples.labels.isnan()).sum(0)
            total += task_losses(self._model(examples.inputs), examples.labels, self._config.tasks) * known
            rows += known
        return total / rows.clamp(min=1)
