"""Gates as plain PyTorch modules, one file per gate, usable outside this project.

A training loop anneals a gate and ends with ``finalize``; ``pipelines.training.gate_schedule`` is such a loop.
"""

from ranking.gates.attentive import AttentiveGate
from ranking.gates.base import Gate, Routing
from ranking.gates.dselect_k import DSelectK
from ranking.gates.gumbel_softmax import GumbelSoftmax
from ranking.gates.shared_bottom import SharedBottom
from ranking.gates.smooth_step import smooth_step
from ranking.gates.softmax import Softmax
from ranking.gates.softmax_selectors import SoftmaxSelectors
from ranking.gates.top_k import TopK

__all__ = [
    "AttentiveGate",
    "DSelectK",
    "Gate",
    "GumbelSoftmax",
    "Routing",
    "SharedBottom",
    "Softmax",
    "SoftmaxSelectors",
    "TopK",
    "smooth_step",
]
