"""The web application of the explorer: three pages, read only, which the browser may not extend by other content."""

import importlib.util
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from jitm.errors import UserError
from jitm.serving.pages import NotFound, Site

if TYPE_CHECKING:
    from starlette.applications import Starlette

MAX_REQUEST = 2**20  # bytes of an address with its headers
LOCAL_HOSTS = ('localhost', '127.0.0.1', '[::1]')
HEADERS = {
    'Content-Security-Policy': (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
}


def check_installed() -> None:
    """Raises a UserError unless the optional packages are installed."""
    missing = [name for name in ('starlette', 'uvicorn') if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"jitm explorer needs {' and '.join(missing)}; pip install 'jitm[explorer]'")


def make_app(site: Site, host: str) -> 'Starlette':
    """Returns the application.

    Args:
      site: the pages.
      host: the address that it is bound to. On this machine's own address requests must name it, so that a page of
        another site cannot read the explorer under a name of its own.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    lock = threading.Lock()  # models and figures are used by one request at a time

    def respond(make: Callable[[Request, str], str]) -> Callable[[Request], HTMLResponse]:
        def endpoint(request: Request) -> HTMLResponse:
            caption, status = request.query_params.get('q', ''), 200
            try:
                with lock:
                    page = make(request, caption)
            except UserError as error:
                page, status = site.message('', str(error)), 400
            except NotFound:
                page, status = site.message('', 'There is no such page.'), 404
            return HTMLResponse(page, status, HEADERS)

        return endpoint

    routes = [
        Route('/', respond(lambda request, caption: site.home(caption))),
        Route('/image/{row:int}', respond(lambda request, caption: site.image(request.path_params['row'], caption))),
        Route('/pair/{row:int}', respond(lambda request, caption: site.pair(request.path_params['row']))),
    ]
    local = host in ('localhost', '127.0.0.1', '::1')
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL_HOSTS) if local else ['*'])
    return Starlette(routes=routes, middleware=[hosts])


def serve(site: Site, host: str, port: int) -> None:
    """Serves the pages until the process is stopped.

    Args:
      site: the pages.
      host: the address to bind to.
      port: the port.
    """
    import uvicorn

    app = make_app(site, host)
    uvicorn.run(app, host=host, port=port, log_level='warning', h11_max_incomplete_event_size=MAX_REQUEST)
