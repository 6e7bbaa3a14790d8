"""Which model a request means, and what it is told while there is none."""

from __future__ import annotations

from typing import Any

import pytest

from service.engine.model import LoadedModel
from service.models.registry import ModelNotFoundError, ModelRegistry, ModelUnavailableError
from service.models.routing import ModelRouting
from service.models.startup_barrier import StartupBarrier

NOTHING: Any = None


def lineup(name: str, *versions: str) -> ModelRouting:
    current, *others = (LoadedModel(name, version, NOTHING, NOTHING, NOTHING, 0.0) for version in versions)
    return ModelRouting(current, *others)


def models(*lineups: ModelRouting, default: str | None = None) -> ModelRegistry:
    found = ModelRegistry(default)
    for each in lineups:
        found.replace(each.current.name, each)
    found.loaded()
    return found


FEED, SHOP = lineup("feed", "3", "4"), lineup("shop", "1")


def not_found(models: ModelRegistry, *names: str) -> str:
    with pytest.raises(ModelNotFoundError) as raised:
        models.get(*names)
    return str(raised.value)


def unavailable(models: ModelRegistry, *names: str) -> str:
    with pytest.raises(ModelUnavailableError) as raised:
        models.get(*names)
    return str(raised.value)


def test_the_named_one() -> None:
    assert models(FEED, SHOP).get("shop") is SHOP


def test_the_only_one_needs_no_name_and_neither_does_the_default() -> None:
    assert models(FEED).get() is FEED
    assert models(FEED, SHOP, default="shop").get() is SHOP


def test_several_without_a_default_must_be_named() -> None:
    assert not_found(models(FEED, SHOP)) == "name a model, there is no default: /v1/models/{feed|shop}/rank"


def test_one_that_is_not_there() -> None:
    assert not_found(models(FEED, SHOP), "nope") == "no model 'nope' is served; served: feed, shop"


def test_versions_in_any_role() -> None:
    assert models(FEED).get_version("feed", "4") is FEED.canary
    with pytest.raises(ModelNotFoundError, match=r"^version 2 of 'feed' is not served; served: 3, 4$"):
        models(FEED).get_version("feed", "2")


def test_get_before_models_are_loaded_raises_unavailable() -> None:
    loading = ModelRegistry(None)
    for names in ((), ("feed",)):
        assert unavailable(loading, *names) == "the models are being loaded: try again"
    loading.replace("feed", None)
    assert unavailable(loading, "feed") == "model 'feed' is being loaded: try again"
    loading.loaded()
    assert unavailable(loading, "feed") == "model 'feed' cannot be served, the service's log says why"
    assert list(loading) == []


def test_several_processes_are_ready_once_all_are() -> None:
    start = StartupBarrier(2)
    first, second = ModelRegistry(None, start), ModelRegistry(None, start)
    first.loaded()
    assert (first.ready, second.ready) == (False, False)
    second.loaded()
    assert (first.ready, second.ready) == (True, True)
    later = ModelRegistry(None, start)
    assert start.all_ready
    assert not later.ready
