"""Run the server, on this machine's own address alone."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from fpmc.errors import InputError
from fpmc.explore.server import make_app
from fpmc.explore.session import Session


def serve(session: Session, *, port: int = 0, browser: bool = True, say: Callable[[str], object] = print) -> None:
    """Answer until interrupted, by Ctrl-C or by a notebook's stop button."""
    with running(session, port) as address:             # in a thread of its own: a notebook has an event loop already
        say(f"{address}\nCtrl-C ends it")
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


@contextmanager
def running(session: Session, port: int = 0) -> Iterator[str]:
    """The same beside other work; yields the address to open."""
    with listening(session, port) as (server, socket_, address):
        thread = threading.Thread(target=server.run, args=[[socket_]], daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def listening(session: Session, port: int) -> Iterator[tuple[uvicorn.Server, socket.socket, str]]:
    """A server that is ready to run, its socket, and the address with the token."""
    if not 0 <= port < 65536:
        raise InputError(f"port {port} is not in 0 … 65535; 0 takes any that is free")
    # The protocol is named so that answers go out at once: asyncio turns Nagle's delay off for named ones alone.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as socket_:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            socket_.bind(("127.0.0.1", port))
            socket_.listen(128)                         # from here on a browser waits instead of being refused
        except OSError as error:
            raise InputError(f"port {port} cannot be used ({error.strerror}); choose another, or 0 for any") from error
        port, token = socket_.getsockname()[1], secrets.token_urlsafe(24)
        app, close = make_app(session, token, lambda: port)
        config = uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=1,
        )
        try:
            yield uvicorn.Server(config), socket_, f"http://127.0.0.1:{port}/?token={token}"
        finally:
            close()
