"""The console in Chromium: what it shows agrees with the service, and it sends nothing to other hosts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.http.auth.keys import create_key
from tests.support.chromium import Page
from tests.support.console_proxy import ConsoleProxy, console_proxy
from tests.support.http_client import post_json, send_request
from tests.support.processes import ServiceProcess, running_service

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
SET_FIELD = """(() => {{
  const input = document.querySelector(`[data-field="{field}"]`);
  input.value = {value};
  input.dispatchEvent(new Event("input", {{bubbles: true}}));
}})()"""
RANKED = "[...document.querySelectorAll('#results tbody tr')].filter(row => row.querySelector('button'))"
IDS = f"{RANKED}.map(row => row.querySelector('button').textContent)"
BARS = "[...document.querySelector('.bars')?.querySelectorAll('tbody tr') ?? []]"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = {};
  const channels = color => {
    if (color in known) return known[color];
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return known[color] = [r, g, b, a / 255];
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(channels(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, [r, g, b, a]) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a)), [255, 255, 255]);
  };
  return [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && !e.closest("svg")
      && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
    const [r, g, b] = channels(getComputedStyle(e).color);
    const pair = [luminance([r, g, b]), luminance(background(e))].sort((x, y) => y - x);
    return [(pair[0] + 0.05) / (pair[1] + 0.05), e.textContent.slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5);
})()"""
"""Visible texts with a contrast below WCAG AA."""


def open_view(page: Page, console: ConsoleProxy, view: str) -> None:
    page.open(f"{console.url}/console#{view}")
    page.wait_for(
        f"document.querySelector('#{view}')?.children.length > 1 || !!document.querySelector('#{view} table')"
    )
    page.wait_for("document.querySelectorAll('#vitals dd').length === 6")


def set_field(page: Page, field: str, value: str) -> None:
    page.run(SET_FIELD.format(field=field, value=json.dumps(value)))


def rank(page: Page, ids: list[str]) -> None:
    """Fill in the form and send it."""
    set_field(page, "user.id", "u3")
    set_field(page, "context.hour", "9")
    for _ in ids[3:]:
        page.run("document.querySelector('#add-item').click()")
    for row, item in enumerate(ids):
        set_field(page, f"items[{row}].id", item)
    page.run("document.querySelector('#try-form').requestSubmit()")


def press(page: Page, key: str, modifiers: int = 0) -> None:
    codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "Escape": 27}
    text = {"text": "\r"} if key == "Enter" else {}
    arguments = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers}
    page.call("Input.dispatchKeyEvent", type="keyDown", **arguments, **text)
    page.call("Input.dispatchKeyEvent", type="keyUp", **arguments)


def resize(page: Page, width: int, scheme: str = "light") -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def test_models_view_agrees_with_the_repository_index(
    page: Page, console: ConsoleProxy, service: ServiceProcess
) -> None:
    open_view(page, console, "models")
    rows = "[...document.querySelectorAll('#models tbody tr')]"
    shown = page.run(f"{rows}.map(row => [...row.cells].slice(0, 3).map(cell => cell.innerText))")
    assert shown == [["2", "not released", "unavailable\nnot released"], ["1", "current", "ready"]]
    index = send_request(f"{service.url}/v2/repository/index", {}).json()
    assert [(entry["version"], entry["state"]) for entry in index] == [("1", "READY"), ("2", "UNAVAILABLE")]
    assert page.run("document.querySelector('#health').innerText") == "feed 1"
    assert all(url.startswith((f"{console.url}/", "data:", "about:")) for url in page.requested)
    assert page.errors == []


def test_models_view_shows_the_verdict_on_the_baselines(page: Page, console: ConsoleProxy) -> None:
    def edit(path: str, answer: Any) -> Any:
        if path == "models":
            answer["models"][0]["versions"][0]["evaluation"]["verdict"] = ["click: first", "like: second"]
        return answer

    console.edit = edit
    open_view(page, console, "models")
    assert page.run("[...document.querySelectorAll('#models .verdict')].map(line => line.innerText)")[-2:] == [
        "click: first",
        "like: second",
    ]


def test_pages_work_below_a_prefix_of_a_proxy(page: Page, service: ServiceProcess) -> None:
    with console_proxy(service.url, "/ranker") as console:
        open_view(page, console, "models")
        assert all(url.startswith((f"{console.url}/", "data:", "about:")) for url in page.requested)
        open_view(page, console, "try")
        rank(page, ["v1", "v2", "v3"])
        page.wait_for(f"{RANKED}.length === 3")
        assert page.errors == []


def test_selection_view_shows_weights_and_unused_experts(
    page: Page, console: ConsoleProxy, service: ServiceProcess
) -> None:
    open_view(page, console, "selection")
    rows = page.run(
        "[...document.querySelectorAll('#selection tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    selection = send_request(f"{service.url}/console/api/models/feed/versions/1").json()["selection"]
    for task, *cells in rows:
        for expert, cell in zip(selection["experts_used"], cells, strict=True):
            weight = selection["tasks"][task].get(str(expert))
            assert cell == (f"{weight:.2f}" if weight else "–")
    assert len(rows) == len(selection["tasks"])


def test_selection_view_on_a_phone_shows_the_used_experts_and_folds_the_others(
    page: Page, console: ConsoleProxy
) -> None:
    def widen(path: str, answer: Any) -> Any:
        if "/versions/" in path:
            answer["selection"] |= {
                "experts_total": 8,
                "experts_used": [4, 5],
                "tasks": {"click": {"4": 0.25, "5": 0.75}},
            }
        return answer

    console.edit = widen
    resize(page, 390)
    open_view(page, console, "selection")
    heat = "document.querySelector('#selection .heat')"
    assert page.run(f"{heat}.innerText.trim().split(/\\s*[\\n\\t]+\\s*/).slice(1)") == [
        *("task", "expert 4", "expert 5"),
        *("click", "0.25", "0.75"),
    ]
    assert page.run(f"{heat}.scrollWidth - {heat}.clientWidth") <= 0
    details = "document.querySelector('#selection details')"
    assert page.run(f"[{details}.open, {details}.innerText]") == [False, "6 experts are not used"]
    assert page.run(f"{details}.open = true, {details}.innerText").endswith("served graph: 0, 1, 2, 3, 6, 7.")


def test_live_view_agrees_with_the_metrics(
    page: Page, console: ConsoleProxy, service: ServiceProcess, request_body: dict[str, Any]
) -> None:
    def totals() -> dict[str, float]:
        """Status → number of ranking requests."""
        values = service.metrics()
        return {status: values.get(f"ranker_requests_total,model=feed,status={status}", 0) for status in ("200", "422")}

    open_view(page, console, "live")
    before = totals()
    for _ in range(20):
        post_json(f"{service.url}/v1/rank", request_body)
    send_request(f"{service.url}/v1/rank", {"items": 1})
    expected = {"200": before["200"] + 20, "422": before["422"] + 1}
    service.wait_until(lambda: totals() == expected)
    cells = """Object.fromEntries([...document.querySelectorAll('#live .columns > .scroll:first-child tbody tr')]
      .map(row => [row.cells[0].innerText, [...row.cells].map(cell => cell.innerText.replace(',', ''))]))"""
    page.wait_for(
        f"Number(({cells})['200']?.[2]) === {expected['200']} && Number(({cells})['422']?.[2]) === {expected['422']}"
    )
    span = "Number(document.querySelector('#live > p').innerText.match(/last (\\d+) s/)[1])"
    rate, seconds = page.run(f"[Number(({cells})['200'][1]), {span}]")
    assert rate * seconds == pytest.approx(20, rel=0.35)  # the span is rounded to seconds
    assert page.errors == []


def test_live_view_keeps_at_most_a_minute(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "models")
    span = """import('/console/history.js').then(({History}) => {
      const history = new History();
      for (let time = 0; time <= 200; time += 1.9) history.add(time * 1000, new Map());
      return history.span;
    })"""
    assert 57 < page.run(span) <= 60


def test_statuses_are_sorted_and_their_colors_do_not_depend_on_their_arrival(
    page: Page, console: ConsoleProxy, service: ServiceProcess, request_body: dict[str, Any]
) -> None:
    open_view(page, console, "live")
    legend = "[...document.querySelector('#live figure .legend').children]"
    for body in ({"items": 1}, request_body, request_body | {"deadline_ms": 0.001}):
        send_request(f"{service.url}/v1/rank", body)
    page.wait_for("document.querySelectorAll('#live figure').length > 0")
    page.wait_for(f"['200', '422', '504'].every(status => {legend}.some(line => line.innerText.startsWith(status)))")
    lines = dict(
        page.run(
            f"{legend}.map(line => [line.innerText.slice(0, 3), line.querySelector('line').getAttribute('class')])"
        )
    )
    assert list(lines) == sorted(lines)
    assert (lines["200"][:2], lines["422"][:2], lines["504"][:2]) == ("c2", "c1", "c3")
    assert len(set(lines.values())) == len(lines)


def test_mean_scores_are_compared_with_the_evaluation_and_otherwise_since_the_start(
    page: Page, console: ConsoleProxy, service: ServiceProcess, request_body: dict[str, Any]
) -> None:
    def edit(path: str, answer: Any) -> Any:
        if path == "models":
            tasks = answer["models"][0]["versions"][0]["evaluation"]["tasks"]
            assert tasks["click"]["mean_score"] > 0
            tasks["click"]["mean_score"], tasks["like"]["mean_score"] = 0.001, None
        return answer

    console.edit = edit
    open_view(page, console, "live")
    page.wait_for("document.querySelectorAll('#live table').length > 0")
    rows = """Object.fromEntries([...[...document.querySelectorAll('#live table')]
      .find(table => table.caption.innerText === 'Mean score by task').querySelectorAll('tbody tr')]
      .map(row => [row.cells[0].innerText, [...row.cells].slice(1).map(cell => cell.innerText)]))"""

    def ranked() -> bool:
        post_json(f"{service.url}/v1/rank", request_body)
        return page.run(f"({rows}).click?.[0] > 0") is True

    service.wait_until(ranked)
    shown = page.run(rows)
    assert shown["click"][1].split("\n") == ["0.00100", "test split"]
    assert shown["like"][1].endswith("since start")
    assert all(re.fullmatch(r"−?\d+\.\d %", row[2]) for row in shown.values())


def test_rank_form_agrees_with_the_api_and_weights_sort_without_a_request(
    page: Page, console: ConsoleProxy, service: ServiceProcess
) -> None:
    open_view(page, console, "try")
    rank(page, ["v1", "v2", "v3", "v4", "v5"])
    page.wait_for(f"{RANKED}.length === 5")
    (request,) = console.ranked
    expected = post_json(f"{service.url}/v1/rank", request)
    assert page.run(IDS) == [item["id"] for item in expected["items"]]
    scores = page.run(f"{RANKED}.map(row => Number(row.cells[2].innerText.replace('−', '-').replace(',', '')))")
    assert scores == pytest.approx([item["score"] for item in expected["items"]], rel=1e-3)

    set_field(page, "objective.click", "-3")
    set_field(page, "objective.like", "7.5")
    objective = json.loads(page.run("document.querySelector('#curl').textContent").split("-d '")[1].rstrip("'"))[
        "objective"
    ]
    assert (objective["click"], objective["like"]) == (-3, 7.5)
    assert page.run(IDS) == [
        item["id"] for item in post_json(f"{service.url}/v1/rank", request | {"objective": objective})["items"]
    ]
    assert len(console.ranked) == 1
    assert page.errors == []


def test_empty_rank_form_asks_for_an_item_and_sends_nothing(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "try")
    page.run("document.querySelector('#try-form').requestSubmit()")
    alert = "document.querySelector('#try-form > [role=alert]').innerText"
    assert page.wait_for(alert) == "Enter at least one item."
    assert page.run("document.querySelectorAll('#try-form fieldset tbody tr').length") == 1
    assert page.run("document.activeElement.dataset.field") == "items[0].id"
    assert page.run("document.querySelector('#results').innerText") == ""
    assert console.ranked == []
    rank(page, ["v1"])
    page.wait_for(f"{RANKED}.length === 1")
    assert page.run(alert) == ""


def test_curl_command_works(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "try")
    rank(page, ["v1", "it's", "v3"])
    page.wait_for(f"{RANKED}.length === 3")
    command = page.run("document.querySelector('#curl').textContent")
    output = subprocess.run(["sh", "-c", command], capture_output=True, check=True, text=True).stdout
    assert [item["id"] for item in json.loads(output)["items"]] == page.run(IDS)


def test_rejected_field_is_shown_beside_its_input(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "try")
    set_field(page, "items[1].features.price", "cheap")
    rank(page, ["v1", "v2", "v3"])
    page.wait_for("!!document.querySelector('.field-error')")
    field = page.run("document.activeElement.dataset.field")
    assert field == "items[1].features.price"
    assert "number" in page.run(
        "document.getElementById(document.activeElement.getAttribute('aria-describedby')).innerText"
    )


def test_contributions_are_shown_largest_first(page: Page, console: ConsoleProxy, service: ServiceProcess) -> None:
    open_view(page, console, "try")
    rank(page, ["v1", "v2", "v3"])
    page.wait_for(f"{BARS}.length > 0")
    answer = post_json(f"{service.url}/v1/rank", console.ranked[0])
    contributions = answer["items"][0]["contributions"]["click"]
    largest = sorted(contributions.items(), key=lambda entry: -abs(entry[1]))[:8]
    shown = page.run(f"{BARS}.map(row => [row.cells[0].innerText, Number(row.cells[2].innerText.replace('−', '-'))])")
    assert [name for name, _ in shown[:8]] == [name for name, _ in largest]
    assert [value for _, value in shown[:8]] == pytest.approx([value for _, value in largest], rel=0.01)
    assert shown[8][0] == f"{len(contributions) - 8} others"


def test_reason_is_shown_if_no_item_has_contributions(page: Page, console: ConsoleProxy) -> None:
    def remove(path: str, answer: Any) -> Any:
        if path.endswith("/rank"):
            for item in answer["items"]:
                del item["contributions"]
            del answer["explain"]["baseline"], answer["explain"]["method"]
            answer["explain"]["no_contributions"] = "per_example_gate"
        return answer

    console.edit = remove
    open_view(page, console, "try")
    rank(page, ["v1", "v2", "v3"])
    page.wait_for(f"{RANKED}.length === 3")
    assert "this model selects experts for each candidate" in page.run("document.querySelector('#results').innerText")


def test_hostile_names_of_features_are_text(page: Page, console: ConsoleProxy) -> None:
    def rename(path: str, answer: Any) -> Any:
        if path.endswith("/rank"):
            for item in answer["items"]:
                item["contributions"]["click"] = {"age": 0.25, "price": -0.5, HOSTILE: 0.125}
        return answer

    console.edit = rename
    open_view(page, console, "try")
    rank(page, ["v1", "v2", "v3"])
    page.wait_for(f"{BARS}.length === 3")
    assert page.run(f"{BARS}.map(row => [row.cells[0].innerText, row.cells[2].innerText])") == [
        ["price", "−0.500"],
        ["age", "+0.250"],
        [HOSTILE, "+0.125"],
    ]
    assert page.run("window.hacked") is None


def test_hostile_names_are_text(page: Page, console: ConsoleProxy) -> None:
    def rename(path: str, answer: Any) -> Any:
        if path == "models":
            version = answer["models"][0]["versions"][0]
            version["reason"] = HOSTILE
            version["evaluation"]["tasks"] = {HOSTILE: {"metric": HOSTILE, "value": 1, "interval": None}}
            answer["models"].append({**answer["models"][0], "name": HOSTILE, "default": False})
        return answer

    console.edit = rename
    open_view(page, console, "models")
    assert page.run("document.querySelector('#models').innerText").count(HOSTILE) > 3
    assert page.run("[window.hacked, document.querySelectorAll('main img, main script').length]") == [None, 0]
    assert page.errors == []


def test_report_is_shown_with_styles_and_without_scripts(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "models")
    page.run("document.querySelector('#models button.link').click()")
    heading = "document.querySelector('#report iframe').contentDocument?.querySelector('h1')"
    page.wait_for(f"!!{heading}")
    style = f"getComputedStyle({heading})"
    assert page.run(f"[{heading}.innerText, {style}.color, {style}.marginTop]") == [
        "Report of the run",
        "rgb(1, 2, 3)",
        "7px",
    ]
    assert page.run("window.hacked") is None
    assert all("Blocked script execution in 'about:srcdoc'" in error for error in page.errors)


def test_key_is_asked_for_and_sent(page: Page, repository: Path, tmp_path: Path) -> None:
    secret = create_key(tmp_path / "keys.json", "console", ("read", "rank"))
    with running_service(repository, ["--keys", str(tmp_path / "keys.json")], threads=1) as service:
        page.open(f"{service.url}/console")
        page.wait_for("document.activeElement?.id === 'key' && !document.querySelector('#sign-in').hidden")
        for text, outcome in (("wrong", "'#key-error'"), (secret, "'#models table'")):
            page.call("Input.insertText", text=text)
            press(page, "Enter")
            page.wait_for(f"!!document.querySelector({outcome})?.innerText")
        hidden = "[document.querySelector('#sign-in').hidden, document.querySelector('#tabs').hidden]"
        assert page.run(hidden) == [True, False]
        assert page.run("[sessionStorage.length, localStorage.length]") == [1, 0]


def test_keyboard_reaches_every_view_and_ranks(page: Page, console: ConsoleProxy) -> None:
    page.open(f"{console.url}/console")  # without a view, whose panel would be where tabbing starts
    page.wait_for("!!document.querySelector('#models table')")
    press(page, "Tab")
    assert page.run("document.activeElement.className") == "skip"
    for _ in range(2):
        press(page, "Tab")
    assert page.run("document.activeElement.id") == "tab-models"
    for view in ("selection", "live", "try"):
        press(page, "ArrowRight")
        assert page.run("document.activeElement.id") == f"tab-{view}"
        assert page.run(f"document.querySelector('#{view}').hidden") is False
    page.wait_for("!!document.querySelector('#try-form')")
    for row in range(3):
        for _ in range(60):
            press(page, "Tab")
            if page.run("document.activeElement.dataset.field") == f"items[{row}].id":
                break
        page.call("Input.insertText", text=f"v{row + 1}")
    press(page, "Enter")
    page.wait_for(f"{RANKED}.length === 3")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") is not None


@pytest.mark.parametrize("view", ["models", "selection", "live", "try", "loop"])
def test_view_fits_a_phone_and_has_contrast_in_both_themes(page: Page, console: ConsoleProxy, view: str) -> None:
    for scheme in ("light", "dark"):
        resize(page, 390, scheme)
        open_view(page, console, view)
        if view == "try":
            rank(page, ["v1", "v2", "v3"])
            page.wait_for(f"{RANKED}.length === 3")
        assert page.run(OVERFLOW) <= 0
        assert page.run("document.documentElement.dataset.theme") == scheme
        assert page.run(CONTRAST) == []
    assert page.errors == []


def test_unreachable_service_greys_the_last_values(page: Page, console: ConsoleProxy) -> None:
    open_view(page, console, "live")
    console.service = "http://127.0.0.1:9"
    page.wait_for("document.body.classList.contains('stale')")
    assert re.search(r"values are those of \d\d:\d\d:\d\d", page.run("document.querySelector('#health').innerText"))
    assert page.run("document.querySelectorAll('#live table').length") > 0


def test_repository_without_models_is_explained(page: Page, console: ConsoleProxy) -> None:
    console.edit = lambda path, answer: {**answer, "models": []} if path == "models" else answer
    page.open(f"{console.url}/console")
    page.wait_for("document.querySelector('#models h2')?.innerText === 'No models yet'")
