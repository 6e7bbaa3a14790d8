"""Training loop: train, anneal the gates, continue with the selected experts, keep the best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from pipelines.config.config import Config
from pipelines.console import Progress, print_status
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import restore_optimizers, save_best
from pipelines.training.checkpoint import (
    Checkpoint,
    Checkpoints,
    dense_state,
    optimizer_state,
    parameters_with_state,
    random_states,
    restore_random_states,
)
from pipelines.training.dataloader import BatchLoader, EpochSlice
from pipelines.training.distributed import DistContext
from pipelines.training.divergence import explain_divergence
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.expert_pruning import distill, keep_experts, prune
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.id_dropout import IdDropout
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from pipelines.training.negative_sampling import downsample_negatives, draw_uniforms
from pipelines.training.objective import Objective, ObjectiveOutput, data_parallel
from pipelines.training.optimizer import learning_rate_factor, make_optimizer
from pipelines.training.regularization import Regularization
from pipelines.training.teachers import Teachers
from pipelines.training.warm_start import Continuation
from ranking.errors import RankerError
from ranking.model.losses import FixedWeighting, UncertaintyWeighting, label_weights, task_losses
from ranking.model.mmoe import MMoE
from ranking.settings.gate import AttentiveConfig

MIN_STEPS = 100
"""Trainings with fewer steps log a warning, because the selection of experts is then mostly random."""

OnCheck = Callable[[dict[str, Any]], None]
"""Callback for each line of metrics.jsonl; an exception that it raises ends the training."""


class Trainer:
    """Training of one model.

    A *check* measures the validation losses; ``training.checks_per_epoch`` sets how often.

    Args:
        config: the whole configuration.
        run: folder for metrics, checkpoints and the best weights.
        context: the ranks that train together; they share ``training.batch_size``.
        loader: batches of the training split.
        validation: batches of the validation split.
        model: the dense model; modified in place.
        id_dropout: hides ids of the batches of the training split.
        teachers: earlier runs whose predictions the training learns, too; None for none.
        table_weights: weights [known rows, dim] of the embedding tables of an earlier run; None for random ones.
        continuation: state that a warm start takes over if it keeps the selection; None otherwise.
        on_check: callback for each check, called on the main rank.

    Attributes:
        schedule: the gate schedule.
        steps: optimizer steps of the whole training.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        context: DistContext,
        loader: BatchLoader,
        validation: BatchLoader,
        model: MMoE,
        id_dropout: IdDropout,
        *,
        teachers: Teachers | None = None,
        table_weights: Mapping[str, Tensor] | None = None,
        continuation: Continuation | None = None,
        on_check: OnCheck | None = None,
    ) -> None:
        self._config, self._settings, self._run, self._context = config, config.training, run, context
        settings, rates = self._settings, self._settings.learning_rate
        rank_batch_size = settings.batch_size // context.world_size
        self._tables = EmbeddingTables(
            model.embeddings, rates.embeddings, rank_batch_size, context, settings.seed, table_weights
        )
        self._loader, self._validation, self._model = loader, validation, model.to(context.device)
        self._id_dropout, self._teachers, self._on_check = id_dropout, teachers, on_check
        self._continuation = continuation
        preselected = continuation is not None and model.gate.needs_finalize
        self.steps = self._settings.epochs * loader.steps()
        if self.steps < MIN_STEPS and model.gate.needs_finalize and not preselected:
            print_status(
                f"training has only {self.steps} steps: gates need a few hundred steps to select experts; "
                "lower training.batch_size or raise training.epochs"
            )
        self.schedule = GateSchedule(
            settings.convergence, model.gate, self.steps, config.model.experts_budget, context, preselected=preselected
        )
        penalty = Regularization(config.model.gate, settings.convergence, self.schedule, self.steps)
        uncertainty = settings.loss_weighting == "uncertainty"
        weighting = (UncertaintyWeighting if uncertainty else FixedWeighting)(config.tasks).to(context.device)
        self._optimizer = make_optimizer(model, settings, weighting)
        self._base_rates = [group["lr"] for group in self._optimizer.param_groups]
        ranking_weight = 0.0 if settings.ranking_loss is None else settings.ranking_loss.weight
        self._objective = Objective(model, config.tasks, weighting, penalty, ranking_weight, settings.precision)
        if continuation is not None:
            restore_optimizers(continuation.optimizers, self._objective, self._optimizer, self._tables)
        self._wrapped: nn.Module = data_parallel(self._objective, context)
        self._checkpoints = Checkpoints(run.checkpoints, run.best, context, settings.keep_checkpoints)
        self._task_weights = weighting.weights
        self._step, self._epoch = 0, 0
        self._slices: list[EpochSlice] | None = None  # the rest of a resumed epoch; None for a whole one
        self._loss_sums, self._steps_since_check, self._check_start = self._zero_per_task(), 0, time.monotonic()
        self._best, self._checks_since_best, self._improved = math.inf, 0, False
        self._experts_evaluated = torch.zeros(())

    @property
    def mean_experts_evaluated(self) -> float:
        """Experts with a positive weight for a task, averaged over the tasks and the steps so far."""
        return float(self._experts_evaluated) / max(self._step, 1)

    def fit(self) -> None:
        """Train to the end, or until the validation loss stops improving; the best weights are in the run folder.

        Only weights with a final selection are kept. A checkpoint may follow a check, see ``Checkpoints.due``.

        Raises:
            RankerError: a loss became NaN or infinite; the batch is saved.
            OutputError: the run folder cannot be written.
        """
        if self._continuation is not None and not self._step:
            self._save_initial()
        progress = Progress("training", unit="steps", total=self.steps, initial=self._step)
        self._check_start, stop = time.monotonic(), False
        while self._epoch < self._settings.epochs and not stop:
            slices, start_step = self._slices, self._step
            for batch in self._loader.epoch(self._epoch, slices):
                self._step += 1
                output = self._train_step(batch)
                progress.advance(1, f"loss {float(output.losses @ self._task_weights):.4f}")
                if self._check_due():
                    stop = self._check(output)
                    final = stop or self._step == self.steps
                    if self._checkpoints.due(final=final):
                        remaining = self._loader.remaining(self._epoch, slices, self._step - start_step)
                        self._save_checkpoint(remaining, final=final)
                    self._check_start = time.monotonic()
                    if stop:
                        break
            self._epoch, self._slices = self._epoch + 1, None
        if self._steps_since_check:  # a run resumed with another number of ranks may end one step early
            self._check(output)
        progress.close()
        if self._continuation is not None and self._context.is_main and not self._improved:
            print_status("no step improved the validation loss: the weights of the earlier run are kept")

    def _save_initial(self) -> None:
        """Save the weights of the earlier run as the best ones until a check is better."""
        total = float(self._validation_losses() @ self._task_weights)
        self._best = total if math.isfinite(total) else math.inf
        save_best(self._run, self._context, self._objective, self._tables, self._optimizer)

    def resume(self) -> bool:
        """Continue from the latest intact checkpoint, or from the start; metrics of later steps are removed.

        Returns:
            Whether there is a checkpoint.
        """
        checkpoint = self._checkpoints.latest()
        if checkpoint is not None:
            self._restore_checkpoint(checkpoint)
        if self._context.is_main:
            self._checkpoints.restore_best(checkpoint)
            self._run.truncate_metrics(self._step)
        self._context.barrier()
        return checkpoint is not None

    def _train_step(self, batch: LabeledBatch) -> ObjectiveOutput:
        """Run one optimizer step."""
        step, settings = self._step, self._settings
        batch = downsample_negatives(batch, self._config.tasks, draw_uniforms(settings.seed, step, len(batch)))
        teachers, device, targets = self._teachers, self._context.device, None
        if teachers is not None:  # They see all ids.
            targets = teachers.targets(DeviceBatch.from_labeled(batch, device))
        batch = self._id_dropout(batch, step)
        self._objective.train()
        if self._continuation is not None:
            self._model.freeze_normalization()
        if self.schedule.begin_step(step):
            self._wrapped = data_parallel(self._objective, self._context)
        self._set_learning_rates()
        output: ObjectiveOutput = self._wrapped(step, DeviceBatch.from_labeled(batch, device), targets)
        self._require_finite(output, batch)
        self._optimizer.zero_grad(set_to_none=True)
        output.total.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm is not None:
            groups = self._optimizer.param_groups
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], settings.clip_norm)
        self._optimizer.step()
        self._loss_sums += output.losses
        self._steps_since_check += 1
        self._experts_evaluated += (output.weights > 0).sum(-1).float().mean().cpu()
        if self.schedule.end_step(step, output.weights):
            prune(self._model, self._optimizer, self.schedule, step)
            self._wrapped = data_parallel(self._objective, self._context)
        return output

    def _set_learning_rates(self) -> None:
        continuation = self._continuation
        decay_from = self.schedule.selected_at_step if continuation is None else 0
        factor = learning_rate_factor(self._step, self.steps, self._settings.warmup, decay_from)
        factor *= 1.0 if continuation is None else continuation.rate
        for group, rate in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor
        self._tables.set_learning_rate(self._settings.learning_rate.embeddings * factor)

    def _require_finite(self, output: ObjectiveOutput, batch: LabeledBatch) -> None:
        """Stop all ranks if the loss of any rank is NaN or infinite."""
        diverged = not bool(output.total.isfinite())
        if not self._context.any(diverged):
            return
        file = self._run.bad_batch(self._step, self._context.rank)
        outputs = output.outputs.cpu().contiguous().numpy()  # save_file ignores strides
        save_file(batch.to_arrays() | {"outputs": outputs}, file)
        tasks = zip(self._config.tasks, output.losses, strict=True)
        names = [task.name for task, loss in tasks if not bool(loss.isfinite())]
        labels = self._run.load_survey().get("labels", {"train": {}})
        reason = explain_divergence(self._config, names, batch, labels["train"], here=diverged)
        raise RankerError(
            f"step {self._step}: {reason}. The batch is in {file}. "
            "To train with a corrected configuration, use the same command with --overwrite"
        )

    def _check_due(self) -> bool:
        """Return whether a check follows this step; checks divide an epoch evenly."""
        checks, steps = self._settings.checks_per_epoch, self._loader.steps()
        return self._step * checks // steps > (self._step - 1) * checks // steps

    def _check(self, output: ObjectiveOutput) -> bool:
        """Measure the validation losses, log a line of metrics, and save the weights if they are the best.

        Returns:
            Whether to stop early.
        """
        context, names = self._context, self._config.task_names
        seconds = time.monotonic() - self._check_start
        train = context.sum(self._loss_sums) / context.world_size / self._steps_since_check
        validation = self._validation_losses()
        total = float(validation @ self._task_weights)
        selected = self.schedule.done
        if selected:
            self._checks_since_best += 1
            if total < self._best:
                self._best, self._checks_since_best, self._improved = total, 0, True
                save_best(self._run, self._context, self._objective, self._tables, self._optimizer)
        weights = output.weights.flatten(0, -3).mean(0) if output.weights.dim() == 3 else output.weights
        line = {
            "step": self._step,
            "epoch": self._step / self._loader.steps(),
            "phase": self.schedule.phase(),
            "gamma": self.schedule.gamma_at(self._step),
            "experts": len(self._model.active),
            "learning_rate": self._optimizer.param_groups[0]["lr"],
            "rows_per_second": round(self._steps_since_check * self._settings.batch_size / seconds),
            "train": dict(zip(names, train.tolist(), strict=True)),
            "validation": dict(zip(names, validation.tolist(), strict=True)),
            "validation_total": total,
            "gate_weights": dict(zip(names, weights.tolist(), strict=True)),
            "best": selected and self._checks_since_best == 0,
        }
        if context.is_main:
            self._run.append_metrics(line)
            if self._on_check is not None:
                self._on_check(line)
        self._loss_sums, self._steps_since_check = self._zero_per_task(), 0
        return selected and self._checks_since_best >= self._settings.patience

    @torch.no_grad()
    def _validation_losses(self) -> Tensor:
        """Return the mean loss of each task over the validation split [tasks]."""
        self._objective.eval()
        loss_sums, weight_sums = self._zero_per_task(), self._zero_per_task()
        for labeled_batch in self._validation.epoch(0):
            batch = DeviceBatch.from_labeled(labeled_batch, self._context.device)
            weights = label_weights(batch.labels, batch.weights)
            outputs = self._model(batch.inputs)
            loss_sums += task_losses(outputs, batch.labels, self._config.tasks, batch.weights) * weights
            weight_sums += weights
        weight_sums = self._context.sum(weight_sums)
        return self._context.sum(loss_sums) / torch.where(weight_sums > 0, weight_sums, 1.0)

    def _zero_per_task(self) -> Tensor:
        return torch.zeros(len(self._config.tasks), device=self._context.device)

    def _checkpoint_tensors(self, optimized: list[str]) -> dict[str, Any]:
        """Return the tensors of a checkpoint by name, with the optimizer state of these parameters."""
        return {
            **dense_state(self._model),
            **self._tables.state(),
            **{f"weighting.{name}": value for name, value in self._objective.weighting.state_dict().items()},
            **optimizer_state(self._objective, self._optimizer, optimized),
            "evaluated": self._experts_evaluated,
        }

    def _save_checkpoint(self, remaining: list[EpochSlice], *, final: bool) -> None:
        """Write a checkpoint whose epoch continues with the remaining slices."""
        optimized = parameters_with_state(self._objective, self._optimizer)
        state = {
            "epoch": self._epoch,
            "pieces": [list(epoch_slice) for epoch_slice in remaining],
            "over": final,
            "world": self._context.world_size,
            "device": self._context.device.type,
            "experts": self._model.active.tolist(),
            "distilled": isinstance(self._config.model.gate, AttentiveConfig) and self.schedule.done,
            "convergence": self.schedule.state(),
            "best": self._best if math.isfinite(self._best) else None,
            "checks_since_best": self._checks_since_best,
            "improved": self._improved,
            "optimised": optimized,
        }
        tensors = self._checkpoint_tensors(optimized) | random_states(self._context)
        self._checkpoints.save(self._step, tensors, state)

    def _restore_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint; the random state only if as many ranks wrote it on the same kind of device."""
        state, model = checkpoint.state, self._model
        keep_experts(model, self._optimizer, state["experts"])
        # Distilling freezes the experts, whose parameters must be the new ones. A warm start begins with the distilled
        # gate and trains the experts.
        if state["distilled"] and self._continuation is None:
            distill(model, self._optimizer)
        writer = (state["world"], state.get("device", "cpu"))
        random = random_states(self._context) if writer == (self._context.world_size, self._context.device.type) else {}
        checkpoint.load(self._checkpoint_tensors(state["optimised"]) | random)
        restore_random_states(random, self._context)
        self.schedule.restore(state["convergence"], model.gate)
        self._step, self._epoch = state["step"], state["epoch"]
        self._slices = [EpochSlice(*numbers) for numbers in state["pieces"]]
        if state["over"]:
            self._epoch = self._settings.epochs
        self._best = math.inf if state["best"] is None else state["best"]
        self._checks_since_best = state["checks_since_best"]
        self._improved = state.get("improved", True)
        self._wrapped = data_parallel(self._objective, self._context)
        print_status(f"resumed at step {self._step:,} of {self.steps:,}")
