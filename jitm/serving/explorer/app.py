"""The web application of the explorer: read-only pages, to which the browser may not add other content."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitm.errors import UserError
from jitm.serving.explorer.pages import NotFound, Site

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

MAX_REQUEST = 2**20  # bytes of an address with its headers
LOCAL_HOSTS = ('localhost', '127.0.0.1', '[::1]')
MAX_PORT = 2**16 - 1
PORTS = 20  # ports that are tried, from the one that is asked for
MAX_DIGITS = 18  # digits of a row number
MAX_PHOTO = 20 * 2**20  # bytes of an upload
MAX_BODY = MAX_PHOTO + 2**12  # with the names of the form
MISSING = 'There is no such page.'
FOREIGN = (
    'This page answers only requests for localhost: start jitm explorer with --host 0.0.0.0 to show it, without a '
    'password, to all machines.\n'
)
HEADERS = {
    'Content-Security-Policy': (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    'X-Content-Type-Options': 'nosniff',
    'Referrer-Policy': 'no-referrer',
    'Cache-Control': 'no-store',
}


def in_url(host: str) -> str:
    """Returns a host as URLs have it: IPv6 addresses in brackets."""
    return f'[{host}]' if ':' in host else host


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address, where connections wait for `serve`.

    Args:
      host: A name or an address.
      port: The port, or the first to try if it is taken; 0 for one that is free.

    Raises:
      UserError: If it cannot be bound to.
    """
    for number in range(port, min(port + PORTS, MAX_PORT + 1)):
        try:
            return _listen(host, number)
        except OSError as error:
            problem = error.strerror
            if error.errno != errno.EADDRINUSE:
                break
    raise UserError(f'the page cannot be served at {in_url(host)}:{port} ({problem}); choose --host or --port')


def _listen(host: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as stack:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = stack.enter_context(socket.socket(family, kind, protocol))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()  # other sockets could bind to it until then
        stack.pop_all()
    return bound


def allowed_hosts(host: str) -> list[str]:
    """Returns the host names that requests may use: only its own if all of its addresses belong to this machine.

    A page of another site then cannot read the explorer under a name of its own.

    Args:
      host: The name or address that the explorer is bound to.
    """
    addresses = [ipaddress.ip_address(address[0]) for *_, address in socket.getaddrinfo(host, None)]
    local = all((getattr(address, 'ipv4_mapped', None) or address).is_loopback for address in addresses)
    return sorted({*LOCAL_HOSTS, in_url(host)}) if local else ['*']


def make_app(site: Site, host: str) -> 'Starlette':
    """Returns the application.

    Args:
      site: The pages.
      host: The name or address that it is bound to, see `allowed_hosts`.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    lock = threading.Lock()  # models and figures are used by one request at a time
    hosts = allowed_hosts(host)

    async def check_host(request: Request, respond: Callable) -> Response:
        name = re.sub(r':\d+$', '', request.headers.get('host', '').lower())
        if hosts == ['*'] or name in hosts:
            return await respond(request)
        return PlainTextResponse(FOREIGN, 400)

    def respond(make: Callable[[], str]) -> HTMLResponse:
        try:
            with lock:
                page = make()
                status = 200
        except UserError as error:
            page = site.message(str(error))
            status = 400
        except NotFound:
            page = site.message(MISSING)
            status = 404
        return HTMLResponse(page, status, HEADERS)

    def missing(request: Request, error: Exception) -> HTMLResponse:
        return HTMLResponse(site.message(MISSING), 404, HEADERS)

    async def photo(request: Request) -> HTMLResponse:
        body = bytearray()  # in memory; only the beginning of a body that `uploaded` rejects as too large
        async for part in request.stream():  # read to the end, so that the browser shows the answer
            body += part[: MAX_BODY + 1 - len(body)]
        return await run_in_threadpool(respond, lambda: site.photo(*uploaded(bytes(body))))

    routes = [
        Route('/', lambda request: respond(lambda: site.home(request.query_params.get('q', '')))),
        Route('/image', lambda request: respond(lambda: site.image(_row(request), request.query_params.get('q', '')))),
        Route('/pair', lambda request: respond(lambda: site.pair(_row(request)))),
        Route('/doubtful', lambda request: respond(site.doubtful)),
        Route('/photo', photo, methods=['POST']),
    ]
    checked = Middleware(BaseHTTPMiddleware, dispatch=check_host)
    return Starlette(routes=routes, middleware=[checked], exception_handlers={404: missing})


def _row(request: 'Request') -> int:
    """Returns the number in the address of a page."""
    text = request.query_params.get('row', '')
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise NotFound
    return int(text)


def uploaded(body: bytes) -> tuple[str, bytes]:
    """Returns the name and the content of the file in a form with a single field.

    Args:
      body: The body of the request, as `multipart/form-data`.

    Raises:
      UserError: If there is no file, or it is too large.
    """
    if len(body) > MAX_BODY:
        raise UserError(f'the photo has more than {MAX_PHOTO // 2**20} MiB; give a smaller one')
    boundary, _, content = body.partition(b'\r\n')
    headers, _, content = content.partition(b'\r\n\r\n')
    photo = content.rpartition(b'\r\n' + boundary)[0]
    name = re.search(rb'filename="([^"]+)"', headers)
    if not name or not photo:
        raise UserError('no photo was sent; choose a file')
    return name[1].decode(errors='replace'), photo


def serve(site: Site, host: str, bound: socket.socket) -> None:
    """Serves the pages until a signal, then finishes the pages in progress; a second signal ends the process.

    Args:
      site: The pages.
      host: The name or address that it is bound to.
      bound: The socket, see `bind`.
    """
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, number: int, frame: Any) -> None:
            if self.should_exit:
                os._exit(0)
            super().handle_exit(number, frame)

    options = {'log_level': 'warning', 'lifespan': 'off', 'h11_max_incomplete_event_size': MAX_REQUEST}
    with contextlib.suppress(KeyboardInterrupt):
        Server(uvicorn.Config(make_app(site, host), **options)).run(sockets=[bound])
