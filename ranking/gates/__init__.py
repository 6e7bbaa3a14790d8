"""Gates as plain torch modules, usable outside this project: one file a gate."""

from ranking.gates.base import Gate
from ranking.gates.dselect_k import DSelectK
from ranking.gates.smooth_step import smooth_step

__all__ = ["DSelectK", "Gate", "smooth_step"]
