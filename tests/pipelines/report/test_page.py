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
from tests.pipelines.report.conftest import write_run

SECTIONS = [
    "Data", "Learning curves", "Gate weights", "Chosen experts", "Cost of a row", "Quality", "Calibration", "Slices",
    "What the gates do", "Reproduce",
]  # fmt: skip
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a page holds: its text by section, its tags, and whether every tag is closed."""

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
    def lacking(self) -> set[str]:
        """Sections that say why they are left out."""
        links = re.findall(r'<a href="#\w+" class="lacking">([^<]+)</a>', self.html)
        assert len(links) == sum(attributes.get("class") == "lack" for attributes in self.every("p"))
        return set(links)


def page(run: RunFolder) -> Page:
    return Page(render(read_run_data(run.path)))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


class TestThePage:
    def test_has_every_section(self, made: RunFolder) -> None:
        found = page(made)
        assert [title for title in found.sections if title] == SECTIONS
        assert found.lacking == set()

    def test_says_at_the_top_what_matters(self, made: RunFolder) -> None:
        top = page(made).sections[""]
        for fact in (
            "feed",
            "80,000",
            "4 of 4",
            "35%",
            "choice exact after 55% of the steps",
            "3 tasks over 4 experts",
        ):
            assert fact in top

    def test_shows_the_numbers_of_the_run(self, made: RunFolder) -> None:
        sections = page(made).sections
        expected = {
            "Data": ["80,000", "17", "'price' is NaN", "25%", "1.25%"],
            "Chosen experts": ["0.75", "0.25"],
            "Cost of a row": ["1.2 M", "420 k", "35%", "150 k"],
            "Quality": ["0.6000", "0.5800–0.6200", "0.0040", "1.8000", "NDCG@10"],
            "Calibration": ["0.2500 → 0.2000"],
            "Slices": ["tab", "new_user", "known", "8,900 rows", "5 smaller slices"],
            "What the gates do": ["0.75", "group_1"],
            "Reproduce": ["ranker train 'my logs/ranker.toml'", "--run runs/1", "2.13.0", 'name = "feed"'],
        }
        missing = {(title, text) for title, texts in expected.items() for text in texts if text not in sections[title]}
        assert missing == set()

    def test_is_the_same_every_time(self, made: RunFolder) -> None:
        assert page(made).html == page(made).html

    def test_asks_for_nothing_from_outside(self, made: RunFolder) -> None:
        found = page(made)
        assert not found.every("script")
        assert not re.search(r"url\(|@import|https?:", found.html)
        targets = [tag[key] for _, tag in found.tags for key in ("src", "href") if tag.get(key)]
        assert all(target.startswith(("#", "data:")) for target in targets)
        (policy,) = [meta["content"] for meta in found.every("meta") if meta.get("http-equiv")]
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")

    def test_describes_every_plot_in_words(self, made: RunFolder) -> None:
        drawn = [svg for svg in page(made).every("svg") if svg.get("aria-hidden") != "true"]
        assert len(drawn) == 3 + 3 + 3 + 2  # losses, schedule, gate weights, calibration of the binary tasks
        assert all(svg["role"] == "img" and len(svg["aria-label"] or "") > 20 for svg in drawn)

    def test_links_to_every_section(self, made: RunFolder) -> None:
        found = page(made)
        ids = [tag["id"] for _, tag in found.tags if tag.get("id")]
        assert len(ids) == len(set(ids))
        assert {link["href"] for link in found.every("a")} == {f"#{tag['id']}" for tag in found.every("section")}

    def test_escapes_whatever_a_run_is_called(self, made: RunFolder) -> None:
        nasty = "<b onload=x>&\"'"
        edit(made.survey, lambda survey: survey["bad"].update({nasty: 3}))
        edit(made.survey, lambda survey: survey["null_rate"].update({nasty: 0.5}))
        edit(made.command, lambda command: command["argv"].append(nasty))
        edit(made.evaluation, lambda evaluation: evaluation["slices"].update({nasty: evaluation["slices"].pop("tab")}))
        edit(made.evaluation, lambda e: e["slices"][nasty].update({nasty: e["slices"][nasty].pop("0")}))
        edit(made.selection, lambda s: s["tasks"].update({nasty: s["tasks"].pop("task_0")}))
        found = page(made)
        assert not found.every("b")
        assert found.html.count("&lt;b onload=x&gt;") > 6

    def test_stays_small_for_fifty_tasks_and_sixty_four_experts(self, tmp_path: Path) -> None:
        found = page(write_run(tmp_path / "run", tasks=50, experts=64))
        assert len(found.html.encode()) < 2_000_000
        assert found.lacking == set()


class TestWhatARunLacks:
    @pytest.mark.parametrize(
        ("file", "lacking"),
        [
            ("survey", {"Data"}),
            ("metrics", {"Learning curves", "Gate weights"}),
            ("selection", {"Chosen experts", "Cost of a row"}),
            ("evaluation", {"Quality", "Calibration", "Slices", "What the gates do"}),
            ("best", set()),
        ],
    )
    def test_is_left_out_with_a_line(self, made: RunFolder, file: str, lacking: set[str]) -> None:
        getattr(made, file).unlink()
        assert page(made).lacking == lacking

    def test_the_command_is_replaced_by_the_settings(self, made: RunFolder) -> None:
        made.command.unlink()
        assert "This run has no command.json" in page(made).sections["Reproduce"]

    def test_of_an_older_evaluation_is_left_out(self, made: RunFolder) -> None:
        def older(evaluation: dict[str, Any]) -> None:
            for key in ("calibration_curves", "slices", "uncalibrated"):
                del evaluation[key]
            for measured in evaluation["tasks"].values():
                for key in ("ndcg", "normalised_entropy", "calibration_error", "mae"):
                    measured.pop(key, None)

        edit(made.evaluation, older)
        found = page(made)
        assert found.lacking == {"Calibration", "Slices"}
        assert "NDCG" not in found.sections["Quality"]
        assert "log loss" in found.sections["Quality"]

    def test_of_older_metrics_is_left_out(self, made: RunFolder) -> None:
        lines = [json.loads(line) for line in made.metrics.read_text().splitlines()]
        for line in lines:
            del line["gate_weights"], line["learning_rate"]
        made.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert page(made).lacking == {"Gate weights"}

    def test_a_measure_that_no_task_has_is_left_out(self, made: RunFolder) -> None:
        edit(made.evaluation, lambda e: [measured.update(ndcg=None) for measured in e["tasks"].values()])
        assert "NDCG" not in page(made).sections["Quality"]

    def test_a_task_without_labels_has_dashes(self, made: RunFolder) -> None:
        edit(made.evaluation, lambda evaluation: evaluation["tasks"].update(task_1={"rows": 0}))
        assert "–" in page(made).sections["Quality"]

    def test_a_training_that_goes_on_shows_what_there_is(self, made: RunFolder) -> None:
        lines = made.metrics.read_text().splitlines()[:3]
        made.metrics.write_text("\n".join(lines) + '\n{"step": 2')  # being written
        for file in (made.selection, made.evaluation, made.best):
            file.unlink()
        found = page(made)
        assert "Learning curves" not in found.lacking
        assert "The training has not finished" in found.sections[""]


class TestRealRuns:
    @pytest.mark.parametrize("gate", ["dselect_k all experts", "top_k per example", "attentive", "shared_bottom"])
    def test_of_every_sort_can_be_reported(self, run_of: Callable[[str], RunFolder], gate: str) -> None:
        found = page(run_of(gate))
        assert found.lacking <= {"Calibration", "Slices"}

    def test_single_task_runs_have_no_gate(self, shop: Any, tmp_path: Path) -> None:
        from pipelines.jobs.train import train

        shop.write(shop.table(400))
        found = page(train(shop.config(model={"gate": {"kind": "single_task"}}), tmp_path / "run"))
        assert found.lacking >= {"Gate weights", "Chosen experts", "What the gates do"}
        assert not found.lacking & {"Data", "Learning curves", "Cost of a row", "Quality"}
        assert all(task in found.sections[part] for task in ("click", "watch") for part in ("Data", "Quality"))


class TestWriting:
    def test_goes_to_the_run_folder_unless_told_otherwise(self, made: RunFolder, tmp_path: Path) -> None:
        assert write_report(made.path) == made.path / "report.html"
        assert write_report(made.path, tmp_path / "r.html").read_text() == made.report.read_text()

    def test_replaces_an_older_report(self, made: RunFolder) -> None:
        made.report.write_text("older")
        assert "<title>feed" in write_report(made.path).read_text()

    def test_refuses_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(LogError, match="is no run folder: it has no config"):
            write_report(tmp_path)

    @pytest.mark.parametrize(("file", "text"), [("evaluation", "{"), ("survey", "no json"), ("metrics", "{\n{}\n")])
    def test_names_a_damaged_file(self, made: RunFolder, file: str, text: str) -> None:
        damaged: Path = getattr(made, file)
        damaged.write_text(text)
        with pytest.raises(LogError, match=re.escape(str(damaged))):
            write_report(made.path)

    def test_says_what_it_cannot_write(self, made: RunFolder, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="cannot be written"):
            write_report(made.path, tmp_path / "nowhere" / "report.html")
        assert not (tmp_path / "nowhere").exists()
