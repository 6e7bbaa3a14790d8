"""Checks of feedback against what the service has answered and what its models can learn from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta

from ranking.schema import Schema, Task
from ranking.schema.tasks import MAX_FLOAT32
from ranking.served_log.schema import SHOWN
from service.logs.answered_requests import AnsweredRequests
from service.models.registry import ModelRegistry
from service.protocol.messages import Event, Feedback, SuspectReason

MAX_SKEW = timedelta(minutes=5)
"""Time by which the clock of a caller may be ahead of that of the service."""
MAX_AGE = timedelta(days=366)
"""Maximum age of an event."""

Fault = tuple[SuspectReason, str, str]
"""Reason, path of the field, and explanation."""
ValueCheck = Callable[[float], str | None]
"""Returns what is wrong with the value of a label, or None."""


class SuspectFeedbackError(Exception):
    """Feedback is rejected for a ``SuspectReason``.

    Args:
        reason: why the feedback is rejected.
        field: path of the field.
        explanation: error of the field.
    """

    def __init__(self, reason: SuspectReason, field: str, explanation: str) -> None:
        super().__init__(f"{field}: {explanation}")
        self.reason, self.field, self.explanation = reason, field, explanation


class FeedbackChecks:
    """Checks feedback.

    Args:
        models: models whose tasks determine the known labels and their ranges.
        answers: recent answers of the service, or None if they are not remembered.
        rejected: reasons for which feedback is rejected. Events that are suspect for others are only counted.
    """

    def __init__(self, models: ModelRegistry, answers: AnsweredRequests | None, rejected: Set[SuspectReason]) -> None:
        self._models, self._answers, self._rejected = models, answers, rejected

    def check(self, feedback: Feedback, now: datetime) -> Mapping[SuspectReason, int]:
        """Return the number of suspect events by reason; an event counts with its first reason only.

        Args:
            feedback: feedback of one request.
            now: time of its arrival.

        Raises:
            SuspectFeedbackError: the first fault whose reason is one of those that are rejected.
        """
        flagged: Counter[SuspectReason] = Counter()
        answers = None if self._answers is None else self._answers.find(feedback.request_id)
        general = list(self._request_faults(feedback, answers))
        self._raise_rejected(general)
        labels = self._value_checks(feedback.model)
        items = _all_items(answers)
        for position, event in enumerate(feedback.events):
            faults = [*general, *_event_faults(event, f"events[{position}]", labels, items, now)]
            if faults:
                self._raise_rejected(faults)
                flagged[faults[0][0]] += 1
        return flagged

    def _raise_rejected(self, faults: list[Fault]) -> None:
        for fault in faults:
            if fault[0] in self._rejected:
                reason, field, explanation = fault
                setting = f"'{reason}' is one of the reasons of the setting feedback_reject"
                raise SuspectFeedbackError(reason, field, f"{explanation} ({setting})")

    def _request_faults(self, feedback: Feedback, answers: Sequence[object] | None) -> Iterator[Fault]:
        """Yield the faults of all events of a request."""
        if feedback.model is not None and self._models.served and feedback.model not in self._models.served:
            yield "unknown_model", "model", f"'{feedback.model:.40}' is not served: {', '.join(self._models.served)}"
        if answers is not None and not answers:
            yield "unknown_request", "request_id", "this service has not answered such a request recently"

    def _value_checks(self, model: str | None) -> Mapping[str, list[ValueCheck]]:
        """Return the checks of each known label, ``SHOWN`` included; a value is valid if one of them accepts it."""
        served = self._models.served
        checks: defaultdict[str, list[ValueCheck]] = defaultdict(list)
        for routing in served.values() if model not in served else [served[model]]:
            for _, version in routing.roles:
                for name, check in _label_checks(version.ranker.schema):
                    checks[name].append(check)
        if checks and SHOWN not in checks:
            checks[SHOWN].append(_check_binary)
        return checks


def _all_items(answers: Sequence[frozenset[int | str] | None] | None) -> frozenset[str] | None:
    """Return the items of all answers to a request as text, or None if they are not known."""
    items: set[str] = set()
    for answer in answers or [None]:
        if answer is None:
            return None
        items.update(map(str, answer))
    return frozenset(items)


def _label_checks(schema: Schema) -> Iterator[tuple[str, ValueCheck]]:
    """Yield the check of each label and mask column of a schema."""
    for task in schema.tasks:
        yield task.label, _label_check(task)
        if task.mask is not None:
            yield task.mask, _check_binary


def _label_check(task: Task) -> ValueCheck:
    if task.kind == "binary":
        return _check_binary
    low, high = task.label_range

    def check(value: float) -> str | None:
        if not low <= value <= high:
            return f"must be between {low:g} and {high:g}"
        return "must be greater than −1" if task.transform == "log1p" and value == -1.0 else None

    return check


def _check_binary(value: float) -> str | None:
    return None if value in (0.0, 1.0) else "must be 0 or 1"


def _event_faults(
    event: Event,
    field: str,
    labels: Mapping[str, list[ValueCheck]],
    items: frozenset[str] | None,
    now: datetime,
) -> Iterator[Fault]:
    """Yield the faults of one event.

    Args:
        event: the event.
        field: its path.
        labels: checks by name of a known label; empty if no model is loaded.
        items: items of the answer as text, or None if they are not known: an integer is equal to its decimal text.
        now: time of arrival.
    """
    if items is not None and str(event.item) not in items:
        yield "unknown_item", f"{field}.item", "was not in the answer to this request"
    for name, value in event.labels.items():
        if labels and name not in labels:
            yield "unknown_label", f"{field}.labels.{name}", f"is not a label of the model: {', '.join(sorted(labels))}"
        if (explanation := _value_fault(value, labels.get(name, ()))) is not None:
            yield "value", f"{field}.labels.{name}", explanation
    if event.time is not None and event.time > now + MAX_SKEW:
        yield "time", f"{field}.time", "is in the future: send the time of the action"
    if event.time is not None and event.time < now - MAX_AGE:
        yield "time", f"{field}.time", f"is more than {MAX_AGE.days} days ago"


def _value_fault(value: float, checks: Sequence[ValueCheck]) -> str | None:
    """Return what is wrong with a value, or None if one of the checks accepts it."""
    if abs(value) > MAX_FLOAT32:
        return "is beyond the range of float32"
    explanations = [check(value) for check in checks]
    if not explanations or None in explanations:
        return None
    return " or ".join(dict.fromkeys(filter(None, explanations)))
