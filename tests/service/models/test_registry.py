"""The model registry: lookup by name and version, errors, and readiness."""

from __future__ import annotations

from typing import Any

import pytest

from service.engine.model import LoadedModel
from service.models.registry import (
    ModelNotFoundError,
    ModelRegistry,
    ModelRouting,
    ModelUnavailableError,
)

UNUSED: Any = None


def routing(name: str, *versions: str) -> ModelRouting:
    current, *others = (LoadedModel(name, version, UNUSED, UNUSED, UNUSED, 0.0) for version in versions)
    return ModelRouting(current, *others)


def registry(*routings: ModelRouting, default: str | None = None) -> ModelRegistry:
    models = ModelRegistry(default)
    for routing in routings:
        models.replace(routing.current.name, routing)
    models.ready = True
    return models


FEED, SHOP = routing("feed", "3", "4"), routing("shop", "1")


def not_found_message(models: ModelRegistry, *names: str) -> str:
    with pytest.raises(ModelNotFoundError) as raised:
        models.get(*names)
    return str(raised.value)


def unavailable_message(models: ModelRegistry, *names: str) -> str:
    with pytest.raises(ModelUnavailableError) as raised:
        models.get(*names)
    return str(raised.value)


def test_get_named_model_returns_its_routing() -> None:
    assert registry(FEED, SHOP).get("shop") is SHOP


def test_get_without_name_returns_the_only_or_default_model() -> None:
    assert registry(FEED).get() is FEED
    assert registry(FEED, SHOP, default="shop").get() is SHOP


def test_default_model_of_the_repository_is_used_unless_one_is_configured() -> None:
    models = registry(FEED, SHOP)
    models.set_default("shop")
    assert (models.get(), models.default) == (SHOP, "shop")
    models.set_default("feed")
    assert models.get() is FEED
    models.set_default("unknown")
    assert models.default is None
    configured = registry(FEED, SHOP, default="shop")
    configured.set_default("feed")
    assert configured.get() is SHOP


def test_get_without_name_or_default_raises_not_found() -> None:
    assert not_found_message(registry(FEED, SHOP)) == "name a model, there is no default: /v1/models/{feed|shop}/rank"


def test_get_unknown_model_raises_not_found() -> None:
    assert not_found_message(registry(FEED, SHOP), "nope") == "no model 'nope' is served; served: feed, shop"


def test_get_version_finds_versions_in_any_role() -> None:
    assert registry(FEED).get_version("feed", "4") is FEED.canary
    with pytest.raises(ModelNotFoundError, match=r"^version 2 of 'feed' is not served; served: 3, 4$"):
        registry(FEED).get_version("feed", "2")


def test_get_before_or_after_a_failed_load_raises_unavailable() -> None:
    loading = ModelRegistry(None)
    for names in ((), ("feed",)):
        assert unavailable_message(loading, *names) == "the models are being loaded: try again"
    loading.replace("feed", None)
    assert unavailable_message(loading, "feed") == "model 'feed' is being loaded: try again"
    loading.ready = True
    assert unavailable_message(loading, "feed") == "model 'feed' cannot be served, the service's log says why"
    assert loading.routing("feed") is None
