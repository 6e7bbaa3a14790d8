"""State of a joined log: what earlier runs have used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.loop.request_ids import read_hashes, write_hashes
from ranking.errors import LogError

STATE = "_join.json"
"""Name of the file in the folder of the newest run; readers of logs ignore names with an underscore."""
FORMAT = 1


def is_joined_log(log: Path) -> bool:
    """Return whether a folder is a joined log, or can become one: it is missing or empty."""
    if any(log.glob(f"run-*/{STATE}")):
        return True
    return not log.exists() or (log.is_dir() and all(path.name.startswith(".") for path in log.iterdir()))


@dataclass(frozen=True)
class FeedbackState:
    """Events of a file of feedback.

    Attributes:
        events: their number.
        decided: number of events of requests that have become rows.
        latest: latest arrival in microseconds.
        complete: whether no later request can have an event in the file, so that it is not read again.
    """

    events: int
    decided: int
    latest: int
    complete: bool = False

    @property
    def undecided(self) -> int:
        """Number of events of requests that have not become rows."""
        return max(0, self.events - self.decided)


@dataclass(frozen=True)
class JoinState:
    """State after a run.

    Attributes:
        run: number of the run; 0 before the first one.
        model: name of the model; None before the first run.
        served: time of the last used request of each file of the served log, in microseconds; None for a file of which
            every request is used.
        feedback: state of each file of feedback.
        requests: hashes of the ids of requests that became rows, oldest first.
    """

    run: int = 0
    model: str | None = None
    served: Mapping[str, int | None] = field(default_factory=dict)
    feedback: Mapping[str, FeedbackState] = field(default_factory=dict)
    requests: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def read(cls, log: Path) -> JoinState:
        """Read the state of a joined log, or return that of a new one.

        Raises:
            LogError: the state is damaged, or the log holds files but no state.
        """
        files = sorted(log.glob(f"run-*/{STATE}"))
        if not files:
            if not is_joined_log(log):
                raise LogError(
                    f"{log}: is not a log written by 'ranker join': join into a folder beside it, and name both in "
                    f"logs.path, such as path = ['{log.name}', 'joined']"
                )
            return cls()
        try:
            data = json.loads(files[-1].read_text())
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']} is unknown")
            feedback = {name: FeedbackState(**entry) for name, entry in data["feedback"].items()}
            return cls(data["run"], data["model"], data["served"], feedback, read_hashes(files[-1].parent))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise LogError(f"{files[-1]}: is damaged ({error}); restore it, or join into a new folder") from None

    def write(self, folder: Path) -> None:
        """Write the state to the folder of its run."""
        feedback = {name: asdict(entry) for name, entry in self.feedback.items()}
        data = {"run": self.run, "model": self.model, "served": dict(self.served), "feedback": feedback}
        (folder / STATE).write_text(json.dumps({"format": FORMAT, **data}) + "\n")
        write_hashes(folder, self.requests)
