"""Properties that all gates share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from ranking.errors import NotConvergedError
from ranking.gates import AttentiveGate, DSelectK, Gate, GumbelSoftmax, SharedBottom, Softmax, SoftmaxSelectors, TopK
from ranking.gates.base import mean_selection
from ranking.gates.selectors import SelectorGate

TASKS, EXPERTS, INPUTS, WIDTH, ROWS = 3, 5, 6, 4, 7

GATES: dict[str, Callable[[], Gate]] = {
    "dselect_k": lambda: DSelectK(TASKS, EXPERTS, 2),
    "dselect_k per example": lambda: DSelectK(TASKS, EXPERTS, 2, input_size=INPUTS),
    "dselect_k random": lambda: DSelectK(TASKS, EXPERTS, 2, surplus="random"),
    "dselect_k penalty": lambda: DSelectK(TASKS, EXPERTS, 2, surplus="penalty"),
    "dselect_k penalty per example": lambda: DSelectK(TASKS, EXPERTS, 2, input_size=INPUTS, surplus="penalty"),
    "top_k": lambda: TopK(TASKS, EXPERTS, 2),
    "top_k per example": lambda: TopK(TASKS, EXPERTS, 2, INPUTS),
    "noisy top_k per example": lambda: TopK(TASKS, EXPERTS, 2, INPUTS, noise=True),
    "softmax": lambda: Softmax(TASKS, EXPERTS),
    "softmax per example": lambda: Softmax(TASKS, EXPERTS, INPUTS),
    "softmax with a hidden layer": lambda: Softmax(TASKS, EXPERTS, INPUTS, hidden=WIDTH),
    "gumbel_softmax": lambda: GumbelSoftmax(TASKS, EXPERTS),
    "softmax_selectors": lambda: SoftmaxSelectors(TASKS, EXPERTS, 2),
    "attentive": lambda: AttentiveGate(TASKS, EXPERTS, INPUTS, WIDTH),
    "shared_bottom": lambda: SharedBottom(TASKS),
}

SUBSTOCHASTIC = ("gumbel_softmax", "dselect_k penalty", "dselect_k penalty per example")
"""Gates whose weights sum to at most 1 before finalization; those of Gumbel-softmax also afterwards."""


@pytest.fixture(params=GATES)
def name(request: pytest.FixtureRequest) -> str:
    gate_name: str = request.param
    return gate_name


COMPILED = [
    "dselect_k",
    "dselect_k penalty per example",
    "top_k",
    "noisy top_k per example",
    "softmax",
    "softmax per example",
    "softmax with a hidden layer",
    "gumbel_softmax",
    "softmax_selectors",
    "attentive",
    "shared_bottom",
]
"""Gates that together execute every line of the forward pass, for tests that compile, export or derive it."""
compiled_gates = pytest.mark.parametrize("name", COMPILED, indirect=True)

PER_EXAMPLE = [name for name, make in GATES.items() if make().per_example]
per_example_gates = pytest.mark.parametrize("name", PER_EXAMPLE, indirect=True)


@pytest.fixture
def gate(name: str) -> Gate:
    """Gate in eval mode with random parameters, so that experts differ and no code is binary."""
    return randomize(GATES[name]()).eval()


def randomize(gate: Gate) -> Gate:
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.uniform_(-0.2, 0.2)
        if isinstance(gate, AttentiveGate):
            gate.mean_outputs.normal_()
    return gate


def random_inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return random examples [batch, inputs] and expert outputs [experts, batch, width]."""
    return torch.rand(ROWS, INPUTS, dtype=dtype) - 0.5, torch.randn(EXPERTS, ROWS, WIDTH, dtype=dtype)


# Validation.


@pytest.mark.parametrize(
    "make",
    [
        lambda size: DSelectK(2, 3, 1, input_size=size),
        lambda size: TopK(2, 3, 1, input_size=size),
        lambda size: Softmax(2, 3, input_size=size),
    ],
)
def test_gate_input_size_of_zero_is_rejected(make: Callable[[int], Gate]) -> None:
    with pytest.raises(ValueError, match="input_size = 0: must be at least 1, or None for a static gate"):
        make(0)


@pytest.mark.parametrize("kind", [DSelectK, TopK, SoftmaxSelectors])
@pytest.mark.parametrize("k", [-1, 0, 4])
def test_gate_k_out_of_range_is_rejected(kind: type[Gate], k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k}: choose 1 ≤ k ≤ num_experts = 3"):
        kind(2, 3, k)


@pytest.mark.parametrize("kind", [Softmax, GumbelSoftmax])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_gate_without_tasks_or_experts_is_rejected(kind: type[Gate], sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        kind(*sizes)


@per_example_gates
def test_per_example_gate_without_examples_raises(name: str, gate: Gate) -> None:
    x, outputs = random_inputs()
    with pytest.raises(ValueError, match=r"pass x \[batch, \d+\]"):
        gate(None, outputs)
    with pytest.raises(ValueError, match=r"x has shape \[2, 1\]: pass examples \[batch, \d+\]"):
        gate(torch.zeros(2, 1), outputs)
    if name == "attentive":
        with pytest.raises(ValueError, match=r"pass outputs \[experts, batch, width\]"):
            gate(x)


@pytest.mark.parametrize("name", [name for name in GATES if name not in PER_EXAMPLE], indirect=True)
def test_static_gate_ignores_examples_and_outputs(gate: Gate) -> None:
    assert torch.equal(gate(), gate(*random_inputs()))


def test_gate_selection_that_raises_keeps_training_mode() -> None:
    gate = TopK(TASKS, EXPERTS, 2, INPUTS, noise=True).train()
    with pytest.raises(ValueError, match="needs examples: pass x"):
        gate.selection()
    assert gate.training, "otherwise training would continue without noise"


def test_gate_restrict_removes_experts_or_raises_if_unsupported(gate: Gate) -> None:
    if isinstance(gate, SelectorGate):
        gate.restrict([0, 2])
        assert gate(*random_inputs())[..., [1, 3, 4]].count_nonzero() == 0
    else:
        with pytest.raises(ValueError, match=f"{type(gate).__name__} does not support restricting its experts"):
            gate.restrict([0, 2])


# Forward pass.


def test_gate_weights_are_distribution_over_experts(name: str, gate: Gate) -> None:
    experts = 1 if name == "shared_bottom" else EXPERTS
    for training in (True, False):
        weights = gate.train(training)(*random_inputs())
        assert weights.shape == ((ROWS, TASKS, experts) if gate.per_example else (TASKS, experts))
        assert (weights >= 0).all()
        sums = weights.sum(-1)
        if name in SUBSTOCHASTIC:
            assert (sums <= 1 + 1e-6).all()
            assert (sums > 0).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_gate_route_returns_selectors_for_selector_gates_only(gate: Gate) -> None:
    weights, selectors = gate.route(*random_inputs())
    if isinstance(gate, SelectorGate):
        assert selectors is not None
        assert selectors.shape == (*weights.shape[:-1], gate.k, EXPERTS)
    else:
        assert selectors is None


@per_example_gates
def test_per_example_gate_of_empty_batch_returns_empty_weights(gate: Gate) -> None:
    assert gate(torch.empty(0, INPUTS), torch.empty(EXPERTS, 0, WIDTH)).shape == (0, TASKS, EXPERTS)


@per_example_gates
def test_per_example_gate_weights_do_not_depend_on_other_examples_of_batch(gate: Gate) -> None:
    x, outputs = random_inputs()
    together = gate(x, outputs).detach()
    alone = [gate(x[i : i + 1], outputs[:, i : i + 1]) for i in range(ROWS)]
    torch.testing.assert_close(together, torch.cat(alone))
    assert float(together.std(0).max()) > 1e-4, "the weights depend on the example"


# Gradients.


@compiled_gates
def test_gate_passes_gradcheck(gate: Gate) -> None:
    gate = gate.double()
    x, outputs = random_inputs(torch.float64)
    if isinstance(gate, DSelectK):
        assert float(gate.variables(x).detach().abs().max()) < float(gate.gamma) / 2, "inside the fractional region"
    names = [name for name, _ in gate.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in gate.parameters()]

    def weights(*args: Tensor) -> Tensor:
        x, outputs, *parameters = args
        result: Tensor = functional_call(gate, dict(zip(names, parameters, strict=True)), (x, outputs))
        return result + 0.0 * x.sum()  # A static gate does not read examples, but gradcheck needs a gradient.

    if isinstance(gate, GumbelSoftmax):
        values[1].requires_grad_(False)  # θ has a gradient in training only.
    assert torch.autograd.gradcheck(weights, (x.requires_grad_(), outputs.requires_grad_(), *values))


# Export, compilation and precision.


@compiled_gates
def test_gate_exported_program_returns_same_weights(gate: Gate) -> None:
    exported = torch.export.export(gate, random_inputs()).module()
    for args in (random_inputs(), random_inputs()):
        assert torch.equal(exported(*args), gate(*args))


@pytest.mark.parametrize("name", [name for name in COMPILED if name in PER_EXAMPLE], indirect=True)
def test_per_example_gate_exports_with_dynamic_batch_size(gate: Gate) -> None:
    rows = torch.export.Dim("rows", min=2, max=1000)
    shapes = {"x": {0: rows}, "outputs": {1: rows}}
    exported = torch.export.export(gate, random_inputs(), dynamic_shapes=shapes).module()
    x, outputs = torch.randn(23, INPUTS), torch.randn(EXPERTS, 23, WIDTH)
    torch.testing.assert_close(exported(x, outputs), gate(x, outputs))


@compiled_gates
def test_gate_compiled_as_one_graph_returns_same_weights_and_gradients(gate: Gate) -> None:
    torch._dynamo.reset()
    args, parameters = random_inputs(), list(gate.parameters())
    weights = gate(*args)
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")(*args)
    assert torch.equal(compiled, weights)
    if parameters:
        factors = torch.randn_like(weights)
        expected = torch.autograd.grad((weights * factors).sum(), parameters, allow_unused=True, materialize_grads=True)
        gradients = torch.autograd.grad(
            (compiled * factors).sum(), parameters, allow_unused=True, materialize_grads=True
        )
        torch.testing.assert_close(gradients, expected)


def test_gate_under_autocast_returns_same_weights_in_float32(gate: Gate) -> None:
    args = random_inputs()
    outside = gate.route(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gate.route(*args)
        from_bfloat16 = gate(*(arg.bfloat16() for arg in args))
    for result, expected in zip(inside, outside, strict=True):
        assert (result is None) == (expected is None)
        if result is not None:
            assert result.dtype == torch.float32
            assert torch.equal(result, expected)
    assert from_bfloat16.dtype == torch.float32, "weights are float32 also for bfloat16 examples"


# Selection.


def test_gate_selection_after_finalize_equals_weights(name: str, gate: Gate) -> None:
    gate.finalize()
    x, outputs = random_inputs()
    assert gate.converged().tolist() == [name != "attentive"] * TASKS
    assert gate.converged().dtype == torch.bool
    if name == "attentive":
        with pytest.raises(NotConvergedError, match="cannot be frozen"):
            gate.selection(x=x)
        return
    weights = gate(x, outputs)
    selection = gate.train().selection(["a", "b", "c"], x)
    assert gate.training, "selection() keeps the training mode"
    assert (selection.num_experts, selection.k, selection.per_example) == (gate.num_experts, gate.k, gate.per_example)
    assert list(selection.tasks) == ["a", "b", "c"]
    mean = weights.mean(0) if gate.per_example else weights
    for row, selected in zip(mean, selection.tasks.values(), strict=True):
        assert list(selected) == (list(range(EXPERTS)) if gate.per_example else row.nonzero().flatten().tolist())
        torch.testing.assert_close(
            row[list(selected)].double(), torch.tensor(list(selected.values()), dtype=torch.double)
        )


def test_gate_serving_gate_is_gate_itself_unless_attentive(name: str, gate: Gate) -> None:
    assert (gate.serving_gate() is gate) == (name != "attentive")


def test_mean_selection_lists_every_available_expert() -> None:
    weights = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    assert mean_selection(weights, ["a", "b"], 2).tasks == {
        "a": {0: 0.5, 1: 0.0, 2: 0.5},
        "b": {0: 0.0, 1: 0.0, 2: 1.0},
    }
    restricted = mean_selection(weights, ["a", "b"], 2, experts=[0, 2])
    assert restricted.tasks == {"a": {0: 0.5, 2: 0.5}, "b": {0: 0.0, 2: 1.0}}
    assert (restricted.num_experts, restricted.k, restricted.per_example, restricted.experts_used) == (
        3,
        2,
        True,
        [0, 2],
    )


# State and resumption.


def train_gate(gate: Gate, steps: range, target: Tensor) -> Gate:
    """Train on random data seeded by the step, annealing each step and restricting the experts at step 3."""
    optimizer = torch.optim.SGD(gate.parameters(), lr=1.0) if list(gate.parameters()) else None
    for step in steps:
        torch.manual_seed(step)
        gate.train().anneal(0.9**step)
        if step == 3 and isinstance(gate, SelectorGate):
            gate.restrict([0, 2, 3])
        loss = (gate(*random_inputs()) * target).sum()
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return gate


@pytest.mark.parametrize("stop", [2, 5])
def test_gate_training_resumed_from_state_dict_equals_uninterrupted_training(name: str, gate: Gate, stop: int) -> None:
    target = torch.randn(gate.num_experts)
    state = {key: value.clone() for key, value in gate.state_dict().items()}
    uninterrupted = train_gate(gate, range(8), target)
    stopped = GATES[name]()
    stopped.load_state_dict(state)
    train_gate(stopped, range(stop), target)
    restored = GATES[name]()  # Random buffers differ until the state is loaded.
    restored.load_state_dict(stopped.state_dict())
    train_gate(restored, range(stop, 8), target)
    args = random_inputs()
    assert torch.equal(uninterrupted.eval()(*args), restored.eval()(*args))
    for key, value in uninterrupted.state_dict().items():
        assert torch.equal(value, restored.state_dict()[key]), key
    if not isinstance(gate, SharedBottom):
        start = GATES[name]()
        start.load_state_dict(state)
        assert not torch.equal(start.eval()(*args), uninterrupted(*args)), "training changes the weights"


def test_gate_finalized_gate_is_restored_from_state_dict(name: str, gate: Gate) -> None:
    gate.finalize()
    restored = GATES[name]()
    restored.load_state_dict(gate.state_dict())
    args = random_inputs()
    for mode in (True, False):
        assert torch.equal(restored.train(mode)(*args), gate.train(mode)(*args)) or name == "noisy top_k per example"
    assert torch.equal(restored.converged(), gate.converged())


@pytest.mark.parametrize("name", ["dselect_k", "softmax_selectors", "gumbel_softmax"], indirect=True)
@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan")])
def test_gate_anneal_to_gamma_not_positive_raises_and_keeps_state(gate: Gate, gamma: float) -> None:
    before = {key: value.clone() for key, value in gate.state_dict().items()}
    with pytest.raises(ValueError, match="must be positive"):
        gate.anneal(gamma)
    assert all(torch.equal(value, before[key]) for key, value in gate.state_dict().items())


@pytest.mark.parametrize("name", ["top_k", "dselect_k"], indirect=True)
def test_gate_selection_with_too_few_task_names_raises(gate: Gate) -> None:
    gate.finalize()
    with pytest.raises(ValueError, match=f"1 names for {gate.num_tasks} tasks"):
        gate.selection(["click"])


@pytest.mark.parametrize("name", ["dselect_k per example"], indirect=True)
def test_per_example_dselect_k_selection_after_restrict_lists_kept_experts_only(gate: Gate) -> None:
    gate.restrict([0, 2])
    gate.finalize()
    for selected in gate.selection(x=random_inputs()[0]).tasks.values():
        assert list(selected) == [0, 2]
        assert sum(selected.values()) == pytest.approx(1.0)
