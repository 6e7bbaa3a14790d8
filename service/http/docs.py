"""The interactive documentation: Swagger UI from an installed package, so that browsers contact no other host."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from service.protocol.problems import Problem

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
"""All addresses are relative, so that the page also works below a prefix that a proxy adds."""

START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
"""Starts Swagger UI; a file of its own, because the content security policy allows no inline scripts."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: nothing is loaded from or sent to other hosts. Swagger UI sets inline styles."""

PACKAGE = "fastapi_swagger"
"""Package that carries Swagger UI; only its files are used."""
FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


def docs_routes(title: str) -> APIRouter:
    """``GET /docs`` and the files of that page."""
    router = APIRouter(include_in_schema=False)
    folder = Path(str(files(PACKAGE))) / "resources"
    page = PAGE.format(title=title)

    @router.get("/docs")
    async def show_page() -> Response:
        """Return the page."""
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    @router.get("/docs/start.js")
    async def start() -> Response:
        """Return the script that starts Swagger UI."""
        return Response(START, media_type="text/javascript")

    @router.get("/docs/{name}")
    async def read_file(name: str) -> Response:
        """Return a file of Swagger UI."""
        if name not in FILES:
            raise Problem(404, "the documentation has no such file")
        return FileResponse(folder / name, media_type=FILES[name])

    return router
