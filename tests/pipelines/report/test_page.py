from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.page import render, write_report
from pipelines.report.run_data import read_run_data
from pipelines.runs.run import RunFolder
from ranking.errors import LogError, OutputError
from ranking.metrics.verdict import verdict
from tests.pipelines.conftest import QUICK
from tests.pipelines.report.conftest import write_run

SECTIONS = [
    "Data", "Learning curves", "Gate weights", "Selected experts", "Cost per row", "Quality", "Baselines",
    "Calibration", "Slices", "Feature importance", "Gate metrics", "Reproduce",
]  # fmt: skip
VOID = {"meta", "link", "br", "wbr"}


class Page(HTMLParser):
    """Parsed page: its text by section and its tags; asserts that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tags, self._open = html, [], []
        self.sections: dict[str, str] = {"": ""}
        self._heading = False
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        self._heading = tag == "h2"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.sections[data] = ""
            self._heading = False
        self.sections[list(self.sections)[-1]] += data

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def omitted(self) -> set[str]:
        """Titles of the omitted sections."""
        links = re.findall(r'<a href="#\w+" class="omitted">([^<]+)</a>', self.html)
        assert len(links) == sum(attributes.get("class") == "omitted" for attributes in self.every("p"))
        return set(links)


def report_page(run: RunFolder) -> Page:
    return Page(render(read_run_data(run.path)))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


# Page.


@pytest.fixture(scope="module")
def page(written_run: RunFolder) -> Page:
    """The page of a finished run; read only."""
    return report_page(written_run)


def test_page_of_a_finished_run_has_every_section(page: Page) -> None:
    assert [title for title in page.sections if title] == SECTIONS
    assert page.omitted == set()


def test_page_top_summarizes_the_run(page: Page, written_run: RunFolder) -> None:
    top = page.sections[""]
    lines = verdict(written_run.load_evaluation()["baselines"])
    assert lines
    assert all(line in top for line in lines)
    for fact in ("feed", "80,000", "4 of 4", "35%", "selection exact after 55% of the steps", "3 tasks over 4 experts"):
        assert fact in top


def test_page_shows_the_figures_of_the_run(page: Page) -> None:
    expected = {
        "Data": ["80,000", "17", "'price' is NaN", "25%", "1.25%"],
        "Selected experts": ["0.75", "0.25"],
        "Cost per row": ["1.2 M", "420 k", "35%", "150 k"],
        "Quality": ["0.6000", "0.5800–0.6200", "0.0040", "1.8000", "NDCG@10"],
        "Calibration": ["0.2500 → 0.2000"],
        "Slices": ["tab", "new_user", "known", "8,900 rows", "5 smaller slices"],
        "Gate metrics": ["0.75", "group_1"],
        "Reproduce": ["ranker train 'my logs/ranker.toml'", "--run runs/1", "2.13.0", 'name = "feed"'],
    }
    missing = {(title, text) for title, texts in expected.items() for text in texts if text not in page.sections[title]}
    assert missing == set()


def test_page_of_the_same_run_is_identical(page: Page, written_run: RunFolder) -> None:
    assert report_page(written_run).html == page.html


def test_page_references_no_external_resources(page: Page) -> None:
    assert not page.every("script")
    assert not re.search(r"url\(|@import|https?:", page.html)
    targets = [tag[key] for _, tag in page.tags for key in ("src", "href") if tag.get(key)]
    assert all(target.startswith(("#", "data:")) for target in targets)
    (policy,) = [meta["content"] for meta in page.every("meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_page_plots_have_text_alternatives(page: Page) -> None:
    drawn = [svg for svg in page.every("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawn) == 3 + 3 + 3 + 2  # losses, schedule, gate weights, calibration of the binary tasks
    assert all(svg["role"] == "img" and len(svg["aria-label"] or "") > 20 for svg in drawn)


def test_page_links_to_every_section(page: Page) -> None:
    ids = [tag["id"] for _, tag in page.tags if tag.get("id")]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in page.every("a")} == {f"#{tag['id']}" for tag in page.every("section")}


def test_page_escapes_names_from_the_run(finished_run: RunFolder) -> None:
    markup = "<b onload=x>&\"'"
    edit(finished_run.survey, lambda survey: survey["bad"].update({markup: 3}))
    edit(finished_run.survey, lambda survey: survey["null_rate"].update({markup: 0.5}))
    edit(finished_run.command, lambda command: command["argv"].append(markup))
    edit(finished_run.evaluation, lambda e: e["slices"].update({markup: e["slices"].pop("tab")}))
    edit(finished_run.evaluation, lambda e: e["slices"][markup].update({markup: e["slices"][markup].pop("0")}))
    edit(finished_run.selection, lambda s: s["tasks"].update({markup: s["tasks"].pop("task_0")}))
    result = report_page(finished_run)
    assert not result.every("b")
    assert result.html.count("&lt;b onload=x&gt;") > 6
    assert "task_<wbr>1" in result.html  # lines break there, and not inside a word


def test_page_of_50_tasks_and_64_experts_is_below_2_mb(tmp_path: Path) -> None:
    result = report_page(write_run(tmp_path / "run", tasks=50, experts=64))
    assert len(result.html.encode()) < 2_000_000
    assert result.omitted == set()


# Absent files.


@pytest.mark.parametrize(
    ("file", "omitted"),
    [
        ("survey", {"Data"}),
        ("metrics", {"Learning curves", "Gate weights"}),
        ("selection", {"Selected experts", "Cost per row"}),
        ("evaluation", {"Quality", "Calibration", "Slices", "Baselines", "Feature importance", "Gate metrics"}),
        ("best", set()),
    ],
)
def test_page_without_a_file_omits_its_sections(finished_run: RunFolder, file: str, omitted: set[str]) -> None:
    getattr(finished_run, file).unlink()
    assert report_page(finished_run).omitted == omitted


def test_page_without_command_json_refers_to_the_settings(finished_run: RunFolder) -> None:
    finished_run.command.unlink()
    assert "There is no command.json" in report_page(finished_run).sections["Reproduce"]


def test_page_of_an_older_evaluation_omits_absent_parts(finished_run: RunFolder) -> None:
    def older(evaluation: dict[str, Any]) -> None:
        for key in ("calibration_curves", "slices", "uncalibrated", "baselines", "importance"):
            del evaluation[key]
        for measured in evaluation["tasks"].values():
            for key in ("ndcg", "normalised_entropy", "calibration_error", "mae"):
                measured.pop(key, None)

    edit(finished_run.evaluation, older)
    result = report_page(finished_run)
    assert result.omitted == {"Calibration", "Slices", "Baselines", "Feature importance"}
    assert "NDCG" not in result.sections["Quality"]
    assert "log loss" in result.sections["Quality"]


def test_page_of_older_metrics_omits_gate_weights(finished_run: RunFolder) -> None:
    lines = [json.loads(line) for line in finished_run.metrics.read_text().splitlines()]
    for line in lines:
        del line["gate_weights"], line["learning_rate"]
    finished_run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report_page(finished_run).omitted == {"Gate weights"}


def test_page_omits_a_metric_that_no_task_has(finished_run: RunFolder) -> None:
    edit(finished_run.evaluation, lambda e: [measured.update(ndcg=None) for measured in e["tasks"].values()])
    assert "NDCG" not in report_page(finished_run).sections["Quality"]


def test_page_of_a_task_without_labels_shows_dashes(finished_run: RunFolder) -> None:
    edit(finished_run.evaluation, lambda evaluation: evaluation["tasks"].update(task_1={"rows": 0}))
    assert "–" in report_page(finished_run).sections["Quality"]


def test_page_of_an_unfinished_training_shows_its_progress(finished_run: RunFolder) -> None:
    lines = finished_run.metrics.read_text().splitlines()[:3]
    finished_run.metrics.write_text("\n".join(lines) + '\n{"step": 2')  # training is writing the last line
    for file in (finished_run.selection, finished_run.evaluation, finished_run.best):
        file.unlink()
    result = report_page(finished_run)
    assert "Learning curves" not in result.omitted
    assert "Training has not finished" in result.sections[""]


# Real runs.


@pytest.mark.parametrize(
    "gate",
    [
        "top_k per example",
        *(pytest.param(g, marks=pytest.mark.nightly) for g in ("dselect_k all experts", "attentive", "shared_bottom")),
    ],
)
def test_page_of_a_trained_run_has_all_sections(run_of: Callable[[str], RunFolder], gate: str) -> None:
    result = report_page(run_of(gate))
    assert result.omitted <= {"Calibration", "Slices", "Baselines", "Feature importance"}


def test_page_of_a_single_task_run_omits_the_gate_sections(shop: Any, tmp_path: Path) -> None:
    from pipelines.jobs.train import train

    shop.write(shop.table(400))
    result = report_page(train(shop.config(model={"gate": {"kind": "single_task"}}, **QUICK), tmp_path / "run"))
    assert result.omitted >= {"Gate weights", "Selected experts", "Gate metrics"}
    assert not result.omitted & {"Data", "Learning curves", "Cost per row", "Quality"}
    assert all(task in result.sections[part] for task in ("click", "watch") for part in ("Data", "Quality"))


# Write report.


def test_write_report_without_out_writes_to_the_run_folder(finished_run: RunFolder, tmp_path: Path) -> None:
    assert write_report(finished_run.path) == finished_run.path / "report.html"
    assert write_report(finished_run.path, tmp_path / "r.html").read_text() == finished_run.report.read_text()


def test_write_report_replaces_an_older_report(finished_run: RunFolder) -> None:
    finished_run.report.write_text("older")
    assert "<title>feed" in write_report(finished_run.path).read_text()


def test_write_report_of_another_folder_fails(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is not a run folder: it has no config"):
        write_report(tmp_path)


@pytest.mark.parametrize(("file", "text"), [("evaluation", "{"), ("survey", "no json"), ("metrics", "{\n{}\n")])
def test_write_report_of_a_damaged_run_names_the_file(finished_run: RunFolder, file: str, text: str) -> None:
    damaged: Path = getattr(finished_run, file)
    damaged.write_text(text)
    with pytest.raises(LogError, match=re.escape(str(damaged))):
        write_report(finished_run.path)


def test_write_report_to_an_absent_folder_fails(finished_run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_report(finished_run.path, tmp_path / "nowhere" / "report.html")
    assert not (tmp_path / "nowhere").exists()
