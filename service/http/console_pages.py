"""``GET /console``: the files of the console, static pages that load and send nothing to other hosts."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, RedirectResponse

from service.protocol.problems import Problem

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the pages; the frame of a report, which has inline styles, inherits it."""
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INDEX = "index.html"


def console_pages() -> APIRouter:
    """``GET /console/`` and the files of that page."""
    router = APIRouter(include_in_schema=False)
    folder = Path(str(files("service"))) / "console" / "static"
    names = {file.name for file in folder.iterdir() if file.suffix in MEDIA_TYPES}

    def respond(name: str) -> Response:
        headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        return FileResponse(folder / name, media_type=MEDIA_TYPES[Path(name).suffix], headers=headers)

    @router.get("/console")
    async def redirect() -> Response:
        """Redirect to the page, whose addresses are relative to its folder."""
        return RedirectResponse("console/")

    @router.get("/console/")
    async def show_page() -> Response:
        """Return the page."""
        return respond(INDEX)

    @router.get("/console/{name}")
    async def read_file(name: str) -> Response:
        """Return a file of the page."""
        if name not in names:
            raise Problem(404, "the console has no such file")
        return respond(name)

    return router
