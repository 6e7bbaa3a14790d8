"""What holds for every gate, whatever its kind."""

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
"""Their weights sum to at most 1 until the choice is final; Gumbel's even then."""


@pytest.fixture(params=GATES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


PER_EXAMPLE = [name for name, make in GATES.items() if make().per_example]
of_examples = pytest.mark.parametrize("name", PER_EXAMPLE, indirect=True)


@pytest.fixture
def gate(name: str) -> Gate:
    """In evaluation mode, its parameters spread so that no two experts are alike and no code is binary."""
    return spread(GATES[name]()).eval()


def spread(gate: Gate) -> Gate:
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.uniform_(-0.2, 0.2)
        if isinstance(gate, AttentiveGate):
            gate.mean_outputs.normal_()
    return gate


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Examples and experts' outputs."""
    return torch.rand(ROWS, INPUTS, dtype=dtype) - 0.5, torch.randn(EXPERTS, ROWS, WIDTH, dtype=dtype)


# What is refused.


@pytest.mark.parametrize(
    "make",
    [
        lambda size: DSelectK(2, 3, 1, input_size=size),
        lambda size: TopK(2, 3, 1, input_size=size),
        lambda size: Softmax(2, 3, input_size=size),
    ],
)
def test_an_example_has_at_least_one_number(make: Callable[[int], Gate]) -> None:
    with pytest.raises(ValueError, match="input_size = 0: must be at least 1, or None for a static gate"):
        make(0)


@pytest.mark.parametrize("kind", [DSelectK, TopK, SoftmaxSelectors])
@pytest.mark.parametrize("k", [0, 4])
def test_k_lies_between_1_and_n(kind: type[Gate], k: int) -> None:
    with pytest.raises(ValueError, match=f"k = {k}: choose 1 ≤ k ≤ num_experts = 3"):
        kind(2, 3, k)


@pytest.mark.parametrize("kind", [Softmax, GumbelSoftmax])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_there_is_at_least_one_task_and_one_expert(kind: type[Gate], sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        kind(*sizes)


@of_examples
def test_a_per_example_gate_needs_examples(name: str, gate: Gate) -> None:
    x, outputs = drawn()
    with pytest.raises(ValueError, match=r"pass x \[batch, \d+\]"):
        gate(None, outputs)
    with pytest.raises(ValueError, match=r"x has shape \[2, 1\]: pass examples \[batch, \d+\]"):
        gate(torch.zeros(2, 1), outputs)
    if name == "attentive":
        with pytest.raises(ValueError, match=r"give it outputs \[experts, batch, width\]"):
            gate(x)


@pytest.mark.parametrize("name", [name for name in GATES if name not in PER_EXAMPLE], indirect=True)
def test_a_static_gate_ignores_them(gate: Gate) -> None:
    assert torch.equal(gate(), gate(*drawn()))


def test_a_selection_that_is_refused_leaves_the_gate_in_training() -> None:
    gate = TopK(TASKS, EXPERTS, 2, INPUTS, noise=True).train()
    with pytest.raises(ValueError, match="needs examples: pass x"):
        gate.selection()
    assert gate.training, "it would train on without its noise"


def test_a_gate_without_a_way_to_drop_experts_says_so(gate: Gate) -> None:
    if isinstance(gate, SelectorGate):
        gate.restrict([0, 2])
        assert gate(*drawn())[..., [1, 3, 4]].count_nonzero() == 0
    else:
        with pytest.raises(ValueError, match=f"{type(gate).__name__} does not support restricting its experts"):
            gate.restrict([0, 2])


# What it computes.


def test_weights_are_a_distribution_over_the_experts(name: str, gate: Gate) -> None:
    experts = 1 if name == "shared_bottom" else EXPERTS
    for training in (True, False):
        weights = gate.train(training)(*drawn())
        assert weights.shape == ((ROWS, TASKS, experts) if gate.per_example else (TASKS, experts))
        assert (weights >= 0).all()
        sums = weights.sum(-1)
        if name in SUBSTOCHASTIC:
            assert (sums <= 1 + 1e-6).all()
            assert (sums > 0).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_the_selectors_are_told_where_there_are_any(gate: Gate) -> None:
    weights, selectors = gate.route(*drawn())
    if isinstance(gate, SelectorGate):
        assert selectors is not None
        assert selectors.shape == (*weights.shape[:-1], gate.k, EXPERTS)
    else:
        assert selectors is None


@of_examples
def test_no_rows_give_no_weights(gate: Gate) -> None:
    assert gate(torch.empty(0, INPUTS), torch.empty(EXPERTS, 0, WIDTH)).shape == (0, TASKS, EXPERTS)


@of_examples
def test_an_examples_weights_do_not_depend_on_those_beside_it(gate: Gate) -> None:
    x, outputs = drawn()
    together = gate(x, outputs).detach()
    alone = [gate(x[i : i + 1], outputs[:, i : i + 1]) for i in range(ROWS)]
    torch.testing.assert_close(together, torch.cat(alone))
    assert float(together.std(0).max()) > 1e-4, "but they do depend on the example"


# Gradients.


def test_its_gradients_are_those_of_its_values(gate: Gate) -> None:
    gate = gate.double()
    x, outputs = drawn(torch.float64)
    if isinstance(gate, DSelectK):
        assert float(gate.variables(x).detach().abs().max()) < float(gate.gamma) / 2, "inside the fractional region"
    names = [name for name, _ in gate.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in gate.parameters()]

    def weights(*given: Tensor) -> Tensor:
        x, outputs, *parameters = given
        found: Tensor = functional_call(gate, dict(zip(names, parameters, strict=True)), (x, outputs))
        return found + 0.0 * x.sum()  # a static gate does not read examples

    if isinstance(gate, GumbelSoftmax):
        values[1].requires_grad_(False)  # θ learns from the draws of training only
    assert torch.autograd.gradcheck(weights, (x.requires_grad_(), outputs.requires_grad_(), *values))


# What compilers and precisions make of it.


def test_it_exports_to_the_same_numbers(gate: Gate) -> None:
    exported = torch.export.export(gate, drawn()).module()
    for args in (drawn(), drawn()):
        assert torch.equal(exported(*args), gate(*args))


@of_examples
def test_it_exports_for_any_number_of_rows(gate: Gate) -> None:
    rows = torch.export.Dim("rows", min=2, max=1000)
    shapes = {"x": {0: rows}, "outputs": {1: rows}}
    exported = torch.export.export(gate, drawn(), dynamic_shapes=shapes).module()
    x, outputs = torch.randn(23, INPUTS), torch.randn(EXPERTS, 23, WIDTH)
    torch.testing.assert_close(exported(x, outputs), gate(x, outputs))


def test_it_compiles_whole_to_the_same_numbers_and_gradients(gate: Gate) -> None:
    torch._dynamo.reset()
    args, parameters = drawn(), list(gate.parameters())
    weights = gate(*args)
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")(*args)
    assert torch.equal(compiled, weights)
    if parameters:
        some = torch.randn_like(weights)
        expected = torch.autograd.grad((weights * some).sum(), parameters, allow_unused=True, materialize_grads=True)
        found = torch.autograd.grad((compiled * some).sum(), parameters, allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(found, expected)


def test_autocast_leaves_its_numbers_in_float32_and_unchanged(gate: Gate) -> None:
    args = drawn()
    outside = gate.route(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gate.route(*args)
        halves = gate(*(arg.bfloat16() for arg in args))
    for found, expected in zip(inside, outside, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == torch.float32
            assert torch.equal(found, expected)
    assert halves.dtype == torch.float32, "whatever the examples come in"


# The choice.


def test_once_concluded_its_selection_is_its_weights(name: str, gate: Gate) -> None:
    gate.finalize()
    x, outputs = drawn()
    assert gate.converged().tolist() == [name != "attentive"] * TASKS
    assert gate.converged().dtype == torch.bool
    if name == "attentive":
        with pytest.raises(NotConvergedError, match="cannot be frozen"):
            gate.selection(x=x)
        return
    weights = gate(x, outputs)
    selection = gate.train().selection(["a", "b", "c"], x)
    assert gate.training, "asking leaves it as it was"
    assert (selection.num_experts, selection.k, selection.per_example) == (gate.num_experts, gate.k, gate.per_example)
    assert list(selection.tasks) == ["a", "b", "c"]
    mean = weights.mean(0) if gate.per_example else weights
    for row, chosen in zip(mean, selection.tasks.values(), strict=True):
        assert list(chosen) == (list(range(EXPERTS)) if gate.per_example else row.nonzero().flatten().tolist())
        torch.testing.assert_close(row[list(chosen)].double(), torch.tensor(list(chosen.values()), dtype=torch.double))


def test_nothing_but_an_attentive_gate_serves_as_another(name: str, gate: Gate) -> None:
    assert (gate.serving_gate() is gate) == (name != "attentive")


def test_a_mean_selection_names_every_expert_that_some_example_may_need() -> None:
    weights = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
    assert mean_selection(weights, ["a", "b"], 2).tasks == {
        "a": {0: 0.5, 1: 0.0, 2: 0.5},
        "b": {0: 0.0, 1: 0.0, 2: 1.0},
    }
    some = mean_selection(weights, ["a", "b"], 2, experts=[0, 2])
    assert some.tasks == {"a": {0: 0.5, 2: 0.5}, "b": {0: 0.0, 2: 1.0}}
    assert (some.num_experts, some.k, some.per_example, some.experts_used) == (3, 2, True, [0, 2])


# Stopping and going on.


def trained(gate: Gate, steps: range, target: Tensor) -> Gate:
    """Trains on data and draws that depend on the step alone, annealing, and dropping experts at step 3."""
    optimiser = torch.optim.SGD(gate.parameters(), lr=1.0) if list(gate.parameters()) else None
    for step in steps:
        torch.manual_seed(step)
        gate.train().anneal(0.9**step)
        if step == 3 and isinstance(gate, SelectorGate):
            gate.restrict([0, 2, 3])
        loss = (gate(*drawn()) * target).sum()
        if optimiser is not None:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return gate


@pytest.mark.parametrize("stop", [2, 5])
def test_a_gate_that_resumes_from_its_state_goes_on_as_if_it_had_not_stopped(name: str, gate: Gate, stop: int) -> None:
    target = torch.randn(gate.num_experts)
    state = {key: value.clone() for key, value in gate.state_dict().items()}
    whole = trained(gate, range(8), target)
    first = GATES[name]()
    first.load_state_dict(state)
    trained(first, range(stop), target)
    again = GATES[name]()  # draws anew what it draws
    again.load_state_dict(first.state_dict())
    trained(again, range(stop, 8), target)
    args = drawn()
    assert torch.equal(whole.eval()(*args), again.eval()(*args))
    for key, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    if not isinstance(gate, SharedBottom):
        start = GATES[name]()
        start.load_state_dict(state)
        assert not torch.equal(start.eval()(*args), whole(*args)), "training did something"


def test_a_concluded_gate_is_restored_from_its_state(name: str, gate: Gate) -> None:
    gate.finalize()
    again = GATES[name]()
    again.load_state_dict(gate.state_dict())
    args = drawn()
    for mode in (True, False):
        assert torch.equal(again.train(mode)(*args), gate.train(mode)(*args)) or name == "noisy top_k per example"
    assert torch.equal(again.converged(), gate.converged())


@pytest.mark.parametrize("name", ["dselect_k", "softmax_selectors", "gumbel_softmax"], indirect=True)
@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan")])
def test_annealing_goes_to_a_number_above_0(gate: Gate, gamma: float) -> None:
    before = {key: value.clone() for key, value in gate.state_dict().items()}
    with pytest.raises(ValueError, match="must be positive"):
        gate.anneal(gamma)
    assert all(torch.equal(value, before[key]) for key, value in gate.state_dict().items())


@pytest.mark.parametrize("name", ["top_k", "dselect_k"], indirect=True)
def test_a_selection_names_every_task(gate: Gate) -> None:
    gate.finalize()
    with pytest.raises(ValueError, match=f"1 names for {gate.num_tasks} tasks"):
        gate.selection(["click"])


@pytest.mark.parametrize("name", ["dselect_k per example"], indirect=True)
def test_a_restricted_gates_mean_selection_names_only_what_is_left(gate: Gate) -> None:
    gate.restrict([0, 2])
    gate.finalize()
    for chosen in gate.selection(x=drawn()[0]).tasks.values():
        assert list(chosen) == [0, 2]
        assert sum(chosen.values()) == pytest.approx(1.0)
