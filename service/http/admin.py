"""What an operator asks of the repository: Triton's operations, and what is to be served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from ranking.artifacts import checksums, repository
from ranking.artifacts.release import Release
from ranking.errors import RankerError
from service.http.decode import message
from service.http.openapi import documented, documented_body
from service.models.index import VersionEntry, entries, index
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.protocol.messages import IndexRequest
from service.protocol.problems import Problem
from service.settings import Settings


def repository_routes(settings: Settings, models: ModelRegistry, reconciler: Reconciler) -> APIRouter:
    """The index, a look at the repository now, and what is to be served of a model."""
    router = APIRouter(prefix="/v2/repository", tags=["repository"])
    path = settings.repository

    @contextmanager
    def told(model: str | None = None) -> Iterator[None]:
        """Makes problems of what is wrong with the repository; where it lies is nobody's business."""
        try:
            names = repository.names(path)
            if model is not None and model not in names:
                raise Problem(404, f"the repository has no model '{model}': it has {', '.join(names)}")
            yield
        except RankerError as error:
            raise Problem(409, str(error).replace(f"{path}/", "")) from None

    @router.post("/index", responses=documented(400, 409, 422), openapi_extra=documented_body(IndexRequest))
    async def list_versions(http: Request) -> list[VersionEntry]:
        """Every version of every model, and how it stands with it in the process that answers."""
        asked = message(await http.body() or b"{}", IndexRequest, "body", settings)

        def listed() -> list[VersionEntry]:
            with told():
                return [e for e in index(path, models, reconciler) if e.state == "READY" or not asked.ready]

        return await run_in_threadpool(listed)

    @router.post("/models/{model}/load", responses=documented(404, 409))
    def load(model: str) -> list[VersionEntry]:
        """Looks at the model's folder now, also at what was refused before; answers once all is loaded."""
        with told(model):
            reconciler.reload(model)
            return list(entries(path, model, models, reconciler))

    @router.get("/models/{model}/release", responses=documented(404, 409))
    def show_release(model: str) -> dict[str, Any]:
        """What is to be served of the model, as its current.json says."""
        with told(model):
            return repository.release(path, model).to_json()

    @router.put(
        "/models/{model}/release",
        responses=documented(400, 404, 409, 422),
        openapi_extra=documented_body(Release, required=True),
    )
    async def put_release(http: Request, model: str) -> list[VersionEntry]:
        """Says what is to be served of the model; answers once this process does. Others do at their next look."""
        wanted = message(await http.body(), Release, "body", settings)

        def put() -> list[VersionEntry]:
            with told(model):
                with repository.lock_model(path, model):
                    for version in wanted.versions:
                        if (folder := repository.folder(path, model, version)).is_dir():
                            checksums.verify_files(folder)  # else a service that starts next finds nothing to serve
                    repository.put_release(path, model, wanted)
                reconciler.reload(model)
                return list(entries(path, model, models, reconciler))

        return await run_in_threadpool(put)

    return router
