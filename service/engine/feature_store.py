"""The interface of a feature store, as the engine calls it."""

from __future__ import annotations

from typing import Protocol

from service.engine.model import LoadedModel
from service.engine.request import StoreFeatures
from service.engine.validation import ParsedRequest


class FeatureStore(Protocol):
    """Supplies the features that requests leave out."""

    async def lookup(self, model: LoadedModel, request: ParsedRequest) -> StoreFeatures:
        """Look up the features of a request's user and candidates; never raise because of the store.

        Args:
            model: version that will score the request.
            request: parsed request, not validated yet.
        """
        ...

    async def close(self) -> None:
        """Close the connections of the store."""
        ...
