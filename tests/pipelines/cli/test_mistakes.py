"""Deliberate mistakes in a configuration or a log: ``check`` and ``train`` name each in one line and exit with 1."""

from __future__ import annotations

import copy
import io
import json
import re
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.cli.main import main

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

ROWS = 200

EditConfig = Callable[[dict[str, Any]], None]
EditTable = Callable[[pa.Table], pa.Table]


def ranker(*arguments: object) -> tuple[int, str, list[str]]:
    """Run the command line; returns exit code, stdout and the lines of stderr that report an error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    lines = err.getvalue().splitlines()
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return code, out.getvalue(), [line for line in lines if line.startswith("ranker: ")]


def document(shop: Shop) -> dict[str, Any]:
    """Return the valid configuration that the mistakes change."""
    return shop.config().model_dump(mode="json", exclude_none=True)


def set_key(path: str, value: Any) -> EditConfig:
    """Set a key such as ``logs.path`` or ``features.tags.kind``."""

    def edit(config: dict[str, Any]) -> None:
        *sections, key = path.split(".")
        node: Any = config
        for section in sections:
            if isinstance(node, list):
                node = next(entry for entry in node if entry["name"] == section)
            else:
                node = node.setdefault(section, {})
        node[key] = value

    return edit


def add_feature(name: str, kind: str, owner: str = "item", **settings: Any) -> EditConfig:
    return lambda config: config["features"].append({"name": name, "kind": kind, "owner": owner, **settings})


def set_column(name: str, values: Callable[[int], Any], dtype: pa.DataType | None = None) -> EditTable:
    """Replace or add a column; ``values`` maps a row number to its value."""

    def edit(table: pa.Table) -> pa.Table:
        column = pa.array([values(row) for row in range(table.num_rows)], dtype)
        if name in table.column_names:
            return table.set_column(table.column_names.index(name), name, column)
        return table.append_column(name, column)

    return edit


def repeat_column(name: str) -> EditTable:
    return lambda table: pa.Table.from_arrays([*table.columns, table[name]], names=[*table.column_names, name])


def no_change(value: Any) -> Any:
    return value


CONFIG_MISTAKES: list[tuple[str, EditConfig, list[str]]] = [
    ("unknown key", set_key("colour", "red"), ["colour: unknown key"]),
    ("unknown nested key", set_key("training.epoch", 3), ["training.epoch", "unknown key"]),
    ("name with a slash", set_key("name", "a/b"), ["'a/b' is not a valid model name"]),
    ("text for a number", set_key("training.epochs", "3"), ["training.epochs: must be a whole number"]),
    ("float for an integer", set_key("training.batch_size", 32.5), ["training.batch_size"]),
    ("batch of one row", set_key("training.batch_size", 1), ["training.batch_size: must be at least 2"]),
    ("negative rate", set_key("training.learning_rate.trunk", -1.0), ["training.learning_rate.trunk"]),
    ("infinite rate", set_key("training.learning_rate.trunk", float("inf")), ["learning_rate.trunk", "finite"]),
    ("huge seed", set_key("training.seed", 2**70), ["training.seed"]),
    ("unknown tracker", set_key("training.trackers", ["wandb"]), ["trackers"]),
    ("dropout of 1", set_key("model.dropout", 1.0), ["model.dropout"]),
    ("no layers", set_key("model.expert_layers", []), ["model.expert_layers: must hold at least 1 entry"]),
    ("layer of width 0", set_key("model.expert_layers", [0]), ["model.expert_layers"]),
    ("k above experts", set_key("model.gate.k", 4), ["k = 4 exceeds the 3 experts"]),
    ("budget above experts", set_key("model.gate.experts_budget", 4), ["experts_budget = 4 exceeds the 3 experts"]),
    (
        "k above budget",
        lambda config: config["model"]["gate"].update(k=3, experts_budget=2),
        ["k = 3 exceeds experts_budget = 2"],
    ),
    ("gate of another kind", set_key("model.gate.noise", True), ["model.gate.noise: unknown key of kind 'dselect_k'"]),
    ("unknown gate", set_key("model.gate", {"kind": "softmx"}), ["kind is 'softmx'"]),
    ("ramp backwards", set_key("training.convergence.anneal_from", 0.9), ["anneal_from < anneal_until"]),
    ("splits backwards", set_key("logs.validation_from", "2026-02-01"), ["validation_from must be earlier"]),
    ("no date", set_key("logs.test_from", "soon"), ["logs.test_from: must be a date"]),
    ("share above 1", set_key("logs.max_bad_rows", 2.0), ["logs.max_bad_rows: must be at most 1"]),
    ("missing log", set_key("logs.path", "/nowhere/log"), ["/nowhere/log: no such log"]),
    (
        "missing users",
        set_key("logs.users", "/nowhere/u.parquet"),
        ["/nowhere/u.parquet: does not exist", "logs.users"],
    ),
    ("unknown kind", set_key("features.tags.kind", "text"), ["features.'tags'", "kind is 'text'"]),
    ("unknown owner", set_key("features.age.owner", "shop"), ["features.'age'.owner: choose"]),
    ("name of a feature", add_feature("watch time", "numeric"), ['name = "watch_time" with column = "watch time"']),
    ("feature starts with digit", add_feature("2nd", "numeric"), ['name = "_2nd" with column = "2nd"']),
    ("name of a task", set_key("tasks.watch.name", "watch-time"), ['name = "watch_time" with label = "watch-time"']),
    ("feature twice", add_feature("age", "numeric", "user"), ["'age' is declared twice"]),
    (
        "label as a feature",
        add_feature("clicked", "numeric", column="is_click"),
        ["'clicked'", "label of task 'click'"],
    ),
    (
        "list and id on a column",
        add_feature("tag", "categorical", column="tags"),
        ["'tags' (bag) and 'tag' (categorical) share column 'tags'"],
    ),
    (
        "cross of a number",
        lambda c: c["features"].append({"name": "x", "kind": "cross", "of": ["age", "tab"], "hash_buckets": 9}),
        ["cross 'x' combines 'age', a numeric feature"],
    ),
    ("30-digit default", set_key("features.tab.default", 10**30), ["features.'tab'.default", "64-bit integer"]),
    ("huge table", set_key("features.tab.hash_buckets", 10**11), ["hash_buckets = 100,000,000,000", "memory"]),
    ("huge width", set_key("features.tab.dim", 10**9), ["features.'tab'.dim: must be at most 65536"]),
    ("huge experts", set_key("model.experts", 10**10), ["memory", "model.experts = 10,000,000,000"]),
    ("huge layer", set_key("model.tower_layers", [10**10]), ["memory", "model.tower_layers"]),
    ("many buckets", add_feature("band", "buckets", "user", column="age", count=10**12), ["features.'band'.count"]),
    (
        "descending boundaries",
        add_feature("band", "buckets", "user", column="age", boundaries=[2.0, 1.0]),
        ["ascending"],
    ),
    ("bounds of a binary task", set_key("tasks.click.max", 1.0), ["tasks.'click'", "min and max are for regression"]),
    ("huge task weight", set_key("tasks.click.weight", 1e308), ["tasks.'click'.weight: must be at most 1e+06"]),
    ("bounds backwards", lambda c: c["tasks"][1].update(min=9.0, max=1.0), ["min = 9 must be smaller than max = 1"]),
    ("max beyond float32", set_key("tasks.watch.max", 1e300), ["tasks.'watch'", "max = 1e+300 is beyond"]),
    ("objective of zeros", set_key("serving.objective", {"click": 0.0}), ["serving.objective: every weight is 0"]),
    (
        "huge objective",
        set_key("serving.objective", {"click": 1e308}),
        ["serving.objective.click: must be at most 1e+06"],
    ),
    ("objective of no task", set_key("serving.objective", {"clic": 1.0}), ["serving.objective names 'clic'"]),
    ("unknown slice", set_key("evaluation.slices", ["colour"]), ["evaluation.slices names 'colour'"]),
    ("many draws", set_key("evaluation.bootstrap", 10**12), ["evaluation.bootstrap"]),
    ("one column for two ids", set_key("columns.user", "item_id"), ["item_id"]),
    ("request is the time", set_key("columns.request", "time"), ["time and request are the same column 'time'"]),
]

LOG_MISTAKES: list[tuple[str, EditConfig, EditTable, list[str]]] = [
    ("missing feature", no_change, lambda t: t.drop_columns(["age"]), ["part-0.parquet: column 'age'", "is missing"]),
    ("missing label", no_change, lambda t: t.drop_columns(["seconds"]), ["column 'seconds' (label of task 'watch')"]),
    ("repeated unread column", no_change, repeat_column("n"), ["part-0.parquet: 2 columns have the name 'n'"]),
    ("repeated feature column", no_change, repeat_column("age"), ["2 columns have the name 'age'"]),
    ("text number", no_change, set_column("age", str), ["column 'age': holds string, but 'age' is numeric"]),
    (
        "number on text ids",
        add_feature("u", "numeric", "user", column="user_id"),
        no_change,
        ["'user_id'", "'u' is numeric"],
    ),
    ("fractional ids", no_change, set_column("tab", lambda row: row / 7), ["column 'tab'", "integers or strings"]),
    (
        "30-digit ids",
        no_change,
        set_column("item_id", lambda row: Decimal(10**29 + row)),
        ["'item_id'", "integers or strings"],
    ),
    (
        "binary ids",
        no_change,
        set_column("item_id", lambda row: b"\xff" * (row % 5)),
        ["column 'item_id' holds binary"],
    ),
    ("ids beyond 64 bits", no_change, set_column("item_id", lambda row: 2**64 - 1 - row, pa.uint64()), ["'item_id'"]),
    ("text bag", no_change, set_column("tags", str), ["column 'tags': holds string, but 'tags' is a bag"]),
    ("bag of lists", no_change, set_column("tags", lambda _: [["a"]]), ["column 'tags'", "bag"]),
    ("struct", no_change, set_column("age", lambda _: {"years": 3}), ["column 'age': holds struct"]),
    (
        "request of lists",
        set_key("columns.request", "session"),
        set_column("session", lambda _: ["a"]),
        ["column 'session' holds list", "the request id"],
    ),
    ("text time", no_change, set_column("time", str), ["column 'time' holds string, but it is the time"]),
    ("text label", no_change, set_column("seconds", str), ["column 'seconds': holds string", "label of 'watch'"]),
    (
        "text weight",
        set_key("columns.weight", "w"),
        set_column("w", str),
        ["column 'w': holds string", "sample weight"],
    ),
    (
        "huge weights",
        set_key("columns.weight", "w"),
        set_column("w", lambda _: 1e20),
        ["weight 'w' is negative, NaN, infinite or above"],
    ),
    (
        "bad clicks",
        no_change,
        set_column("is_click", lambda row: row % 3),
        ["66 of 200 rows are bad", "label 'is_click' is neither 0 nor 1"],
    ),
    (
        "huge labels",
        no_change,
        set_column("seconds", lambda row: 1e300 if row % 50 == 0 else row % 9),
        ["4 of 200 rows are bad", "label 'seconds' is outside"],
    ),
    (
        "far labels",
        set_key("tasks.watch.max", 60.0),
        set_column("seconds", lambda row: row),
        ["rows are bad", "label 'seconds' is outside -1 to 60"],
    ),
    (
        "constant label",
        no_change,
        set_column("is_click", lambda _: 1),
        ["label 'is_click' of task 'click' is 1 in every training row"],
    ),
    (
        "absent label",
        no_change,
        set_column("seconds", lambda _: None, pa.float64()),
        ["label 'seconds' of task 'watch' is null"],
    ),
    ("no training rows", no_change, lambda t: t.slice(170), ["nothing to train on"]),
    ("no validation rows", no_change, lambda t: t.slice(0, 150), ["nothing to validate on"]),
    (
        "missing days",
        no_change,
        lambda t: pa.concat_tables([t.slice(0, 40), t.slice(120)]),
        ["no usable row on 2026-01-03 to 2026-01-06"],
    ),
    ("no rows", no_change, lambda t: t.slice(0, 0), ["the log is empty"]),
]


def assert_rejected(folder: Path, expected: list[str]) -> None:
    """Assert that check and train fail with the same single line."""
    config = folder / "ranker.toml"
    messages = []
    for command in (("check", config), ("train", config, "--run", folder / "run")):
        code, _, errors = ranker(*command)
        assert code == 1, command
        assert len(errors) == 1
        for text in expected:
            assert text in errors[0]
        messages.append(re.sub(r"[\d.]+ GB are available", "… GB are available", errors[0]))
    assert messages[0] == messages[1]
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("edit", "expected"), [case[1:] for case in CONFIG_MISTAKES], ids=[c[0] for c in CONFIG_MISTAKES]
)
def test_mistake_in_the_configuration_is_named_in_one_line(shop: Shop, edit: EditConfig, expected: list[str]) -> None:
    shop.write(shop.table(ROWS))
    config = document(shop)
    edit(config)
    (shop.folder / "ranker.toml").write_text(tomli_w.dumps(config))
    assert_rejected(shop.folder, expected)


@pytest.mark.parametrize(
    ("edit", "edit_table", "expected"), [case[1:] for case in LOG_MISTAKES], ids=[c[0] for c in LOG_MISTAKES]
)
def test_mistake_in_the_log_is_named_in_one_line(
    shop: Shop, edit: EditConfig, edit_table: EditTable, expected: list[str]
) -> None:
    shop.write(edit_table(shop.table(ROWS)))
    config = document(shop)
    edit(config)
    (shop.folder / "ranker.toml").write_text(tomli_w.dumps(config))
    assert_rejected(shop.folder, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("a" + ".a" * 100_000 + " = 1", "nested too deeply"),
        ("[" + "a." * 100_000 + "a]", "nested too deeply"),
        ("name = ", "not valid TOML"),
        ("name = 'a'\nname = 'b'", "not valid TOML"),
        ("\ufeff\x00", "not valid TOML"),
        ("", "missing"),
    ],
    ids=["brackets", "dotted key", "dotted header", "no value", "key twice", "control characters", "empty"],
)
def test_unreadable_configuration_is_named_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "ranker.toml").write_text(text)
    assert_rejected(tmp_path, [f"{tmp_path}/ranker.toml: ", expected])


def test_check_prints_errors_and_warnings_as_json(shop: Shop) -> None:
    table = set_column("tab", lambda _: 3)(shop.table(ROWS))
    shop.write(set_column("is_click", lambda row: 7 if row < 5 else row % 2)(table))
    shop.config().write(shop.folder / "ranker.toml")
    code, out, errors = ranker("check", shop.folder / "ranker.toml", "--json")
    result = json.loads(out)
    assert code == 1
    assert errors == [f"ranker: {shop.log}: {result['errors'][0]}"]
    assert any(warning.startswith("feature 'tab' is 3 in every training row") for warning in result["warnings"])
    code, out, errors = ranker("check", shop.folder / "ranker.toml", "--max-bad-rows", "0.025")
    assert (code, errors) == (0, [])
    assert "\nwarning: feature 'tab' is 3 in every training row" in out


@pytest.mark.parametrize("share", ["-0.1", "1.5", "x"])
def test_invalid_share_of_bad_rows_is_a_usage_error(shop: Shop, share: str) -> None:
    shop.config().write(shop.folder / "ranker.toml")
    with pytest.raises(SystemExit) as caught:
        ranker("check", shop.folder / "ranker.toml", "--max-bad-rows", share)
    assert caught.value.code == 2


def test_long_list_of_numbers_is_not_nested(shop: Shop) -> None:
    shop.write(shop.table(ROWS))
    config = document(shop)
    add_feature("band", "buckets", "user", column="age", boundaries=[n + 0.5 for n in range(200)])(config)
    (shop.folder / "ranker.toml").write_text(tomli_w.dumps(config))
    assert ranker("check", shop.folder / "ranker.toml")[0] == 0


def paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [*([path] if path else []), *(inner for key, value in entries for inner in paths(value, (*path, key)))]


NUMBERS = [-1, 0, 1, 3, 2**31, 2**63, 10**30, -0.5, 1e-320, 1e308, float("nan"), float("inf")]
OTHERS = [True, "", "x", "\x00", "ü" * 99, [], [[]], {}, [{}], {"kind": "x"}, [1, "a"], "2026-01-01"]
WRONG = st.sampled_from([*NUMBERS, *OTHERS])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_change_of_the_configuration_is_accepted_or_named_in_one_line(
    shared_shop: Shop, tmp_path: Path, data: st.DataObject
) -> None:
    config = copy.deepcopy(document(shared_shop))
    for _ in range(data.draw(st.integers(1, 2))):
        *path, key = data.draw(st.sampled_from(paths(config)))
        node = config
        for part in path:
            node = node[part]
        if data.draw(st.booleans()):
            node[key] = data.draw(WRONG)
        else:
            del node[key]
    text = tomli_w.dumps(config)
    tomllib.loads(text)
    (tmp_path / "ranker.toml").write_text(text)
    code, out, errors = ranker("check", tmp_path / "ranker.toml")
    assert (code, len(errors)) in ((0, 0), (1, 1)), errors
    assert (code == 0) <= out.startswith("rows: ")
