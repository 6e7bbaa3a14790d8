"""Which model a request means, and what it is told while there is none."""

from __future__ import annotations

from typing import Any

import pytest

from service.problems import Problem
from service.versions.lineup import Lineup
from service.versions.models import Models
from service.versions.served import Served
from service.versions.start import Start

NOTHING: Any = None


def lineup(name: str, *versions: str) -> Lineup:
    current, *others = (Served(name, version, NOTHING, NOTHING, NOTHING, 0.0) for version in versions)
    return Lineup(current, *others)


def models(*lineups: Lineup, default: str | None = None) -> Models:
    found = Models(default)
    for each in lineups:
        found.replace(each.current.name, each)
    found.loaded()
    return found


FEED, SHOP = lineup("feed", "3", "4"), lineup("shop", "1")


def problem(models: Models, *names: str) -> Problem:
    with pytest.raises(Problem) as raised:
        models.find(*names)
    return raised.value


def test_the_named_one() -> None:
    assert models(FEED, SHOP).find("shop") is SHOP


def test_the_only_one_needs_no_name_and_neither_does_the_default() -> None:
    assert models(FEED).find() is FEED
    assert models(FEED, SHOP, default="shop").find() is SHOP


def test_several_without_a_default_must_be_named() -> None:
    said = problem(models(FEED, SHOP))
    assert (said.status, said.detail) == (404, "name a model, there is no default: /v1/models/{feed|shop}/rank")


def test_one_that_is_not_there() -> None:
    said = problem(models(FEED, SHOP), "nope")
    assert (said.status, said.detail) == (404, "no model 'nope' is served; served: feed, shop")


def test_versions_in_any_role() -> None:
    assert models(FEED).find_version("feed", "4") is FEED.canary
    with pytest.raises(Problem, match="version 2 of 'feed' is not served; served: 3, 4") as raised:
        models(FEED).find_version("feed", "2")
    assert raised.value.status == 404


def test_all_is_503_with_the_time_to_try_again_until_it_is_known_what_there_is() -> None:
    loading = Models(None)
    for names in ((), ("feed",)):
        said = problem(loading, *names)
        assert (said.status, said.headers) == (503, {"Retry-After": "1"})
    loading.replace("feed", None)
    assert problem(loading, "feed").detail == "model 'feed' is being loaded: try again"
    loading.loaded()
    said = problem(loading, "feed")
    assert (said.status, said.detail) == (503, "model 'feed' cannot be served, the service's log says why")
    assert list(loading) == []


def test_several_processes_are_ready_once_all_are() -> None:
    start = Start(2)
    first, second = Models(None, start), Models(None, start)
    first.loaded()
    assert (first.ready, second.ready) == (False, False)
    second.loaded()
    assert (first.ready, second.ready) == (True, True)
    later = Models(None, start)
    assert start.over
    assert not later.ready
