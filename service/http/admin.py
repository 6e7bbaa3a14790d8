"""Operations on the repository: index, load, release. Names and states follow Triton's model repository extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel

from ranking.artifacts import repository
from ranking.artifacts.bounded_calls import BoundedCalls, TooManyCallsError
from ranking.artifacts.release import Release
from ranking.errors import RankerError
from service.http.decode import decode_message
from service.http.openapi import documented, documented_body
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry, Role
from service.protocol.messages import IndexRequest
from service.protocol.problems import Problem, unavailable
from service.settings import Settings

State = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class VersionEntry(BaseModel):
    """State of one version.

    ``UNLOADING``: the version finishes its last requests. ``UNAVAILABLE``: the version is not released, or is rejected
    for the given reason.
    """

    name: str
    version: str
    state: State
    reason: str = ""
    roles: list[Role] = []


REPOSITORY_SECONDS = 30.0
"""Seconds until an operation responds although the repository, or the load of a version, has not finished."""
MAX_OPERATIONS = 8
"""Maximum number of operations that run at the same time, including those that no client waits for any more."""

Result = TypeVar("Result")


def repository_routes(settings: Settings, models: ModelRegistry, reconciler: Reconciler) -> APIRouter:
    """``/v2/repository``: list versions, reload a model, and read or replace its release."""
    router = APIRouter(prefix="/v2/repository", tags=["repository"])
    path = settings.repository
    calls = BoundedCalls(REPOSITORY_SECONDS, MAX_OPERATIONS)

    async def run(operation: Callable[[], Result], model: str | None = None) -> Result:
        """Return the result of an operation on the repository.

        Errors of the repository become problems without its path; an unknown model is answered with 404.
        """

        def check_and_run() -> Result:
            names = repository.list_models(path)
            if model is not None and model not in names:
                raise Problem(404, f"the repository has no model '{model}': it has {', '.join(names)}")
            return operation()

        try:
            return await calls.call_async(check_and_run)
        except RankerError as error:
            raise Problem(409, str(error).replace(f"{path}/", "")) from None
        except TimeoutError:
            reason = f"the operation has not finished after {REPOSITORY_SECONDS:g} s and continues: a version is being "
            raise Problem(504, f"{reason}loaded, or the repository does not respond") from None
        except TooManyCallsError:
            raise unavailable(f"{MAX_OPERATIONS} earlier operations have not finished") from None

    @router.post(
        "/index",
        responses=documented(400, 409, 413, 415, 422, 429, 503, 504),
        openapi_extra=documented_body(IndexRequest),
    )
    async def list_versions(http: Request) -> list[VersionEntry]:
        """List all versions of all models, with their states in the process that responds."""
        options = decode_message(await http.body() or b"{}", IndexRequest, "body", settings)
        entries = await run(lambda: index_repository(path, models, reconciler))
        return [entry for entry in entries if entry.state == "READY" or not options.ready]

    @router.post("/models/{model}/load", responses=documented(404, 409, 503, 504))
    async def load(model: str) -> list[VersionEntry]:
        """Reload a model from the repository, including versions that were rejected; respond once all are loaded."""

        def reload() -> list[VersionEntry]:
            reconciler.reload(model)
            return index_model(path, model, models, reconciler)

        return await run(reload, model)

    @router.get("/models/{model}/release", responses=documented(404, 409, 503, 504))
    async def show_release(model: str) -> dict[str, Any]:
        """Return the release of a model, as in its current.json."""
        return await run(lambda: repository.read_release(path, model).to_json(), model)

    release_body = documented_body(Release, required=True)

    @router.put(
        "/models/{model}/release",
        responses=documented(400, 404, 409, 413, 415, 422, 429, 503, 504),
        openapi_extra=release_body,
    )
    async def put_release(http: Request, model: str) -> list[VersionEntry]:
        """Replace the release of a model; respond once this process serves it. Others follow at their next poll."""
        release = decode_message(await http.body(), Release, "body", settings)

        def apply_release() -> list[VersionEntry]:
            reconciler.release(model, release)
            return index_model(path, model, models, reconciler)

        return await run(apply_release, model)

    return router


def index_repository(path: Path, models: ModelRegistry, reconciler: Reconciler) -> list[VersionEntry]:
    """Return the versions of all models.

    Raises:
        BundleError: the repository does not exist.
    """
    return [entry for name in repository.list_models(path) for entry in index_model(path, name, models, reconciler)]


def index_model(path: Path, name: str, models: ModelRegistry, reconciler: Reconciler) -> list[VersionEntry]:
    """Return the versions of one model. An entry with an empty version stands for an unreadable current.json."""
    routing = models.routing(name)
    roles: dict[str, list[Role]] = {}
    for role, model in routing.roles if routing else ():
        roles.setdefault(model.version, []).append(role)
    rejected = reconciler.rejected.reasons(name).items()
    reasons = {version: reason.replace(f"{path}/", "") for version, reason in rejected}
    numbers = {*repository.list_versions(path, name), *reasons, *map(int, roles)}
    entries = []
    for number in sorted(numbers):
        version, reason = str(number) if number else "", reasons.get(number, "")
        entry = VersionEntry(name=name, version=version, state="UNAVAILABLE", reason=reason or "not released")
        if version in roles:
            entry = VersionEntry(name=name, version=version, state="READY", reason=reason, roles=roles[version])
        elif reconciler.loading == (name, number):
            entry = VersionEntry(name=name, version=version, state="LOADING")
        elif (name, number) in reconciler.retired:
            entry = VersionEntry(name=name, version=version, state="UNLOADING")
        entries.append(entry)
    return entries
