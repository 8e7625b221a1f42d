"""The page's server: loopback only, a token for every request, nothing but a fixed set of files and questions."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fpmc.errors import InputError
from fpmc.explore import requests as ask
from fpmc.explore.page import page_html, static_files
from fpmc.explore.session import Session
from fpmc.explore.upload import MOST_BYTES
from fpmc.explore.worker import LATER, NOW, SOON, THEN, OvertakenError, Worker

MOST_QUESTION = 1 << 19                                 # bytes of a question; 20,000 painted pixels fit
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
HOSTS = ("127.0.0.1", "localhost")


class Guard:
    """Refuses whoever does not know the token or does not ask for this very host, before anything else happens.

    The host is checked against DNS rebinding, the origin against other pages of the same browser. The token comes once
    in the address, then as a cookie that no script can read and no other site can send.
    """

    def __init__(self, app: ASGIApp, token: str, port: Callable[[], int]) -> None:
        self.app, self.token, self.port = app, token, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            request = Request(scope, receive)
            await (self._refusal(request) or self.app)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: Request) -> Response | None:
        port = self.port()
        hosts = {f"{host}:{port}" for host in HOSTS}
        if request.headers.get("host", "") not in hosts:
            return _words("this server answers to 127.0.0.1 alone", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return _words("this server answers to its own page alone", 403)
        opened = request.method == "GET" and request.url.path == "/"           # as a link from elsewhere may do
        if not opened and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _words("this server answers to its own page alone", 403)
        given = request.query_params.get("token", "") if request.url.path == "/" else ""
        cookie = request.cookies.get(f"fpmc-{port}", "")
        header = request.headers.get("x-fpmc-token", "")
        if not any(hmac.compare_digest(each.encode(), self.token.encode()) for each in (given, cookie, header)):
            return _words("the token is missing or wrong; open the address that fpmc explore printed", 401)
        return None


def make_app(session: Session, token: str, port: Callable[[], int]) -> tuple[ASGIApp, Callable[[], None]]:
    """The application, and what ends its workers; `port` tells which one it listens on, once it does."""
    routes = Routes(session, token, port)
    return Guard(Starlette(routes=routes.all()), token, port), routes.close


@dataclass(frozen=True)
class Question:
    """Something the page may ask, who works it out, and how soon."""

    name: str
    model: type
    answer: Callable[[Any], Any]
    worker: Worker
    urgency: int

    def read(self, body: bytes) -> Any:
        return body if self.model is bytes else self.model.model_validate_json(body or b"{}")


class Routes:
    """A route for each question of the page."""

    def __init__(self, session: Session, token: str, port: Callable[[], int]) -> None:
        self.session, self.worker, self.token, self.port = session, Worker(), token, port
        self.quick = Worker()                           # what needs no kernel does not wait for one
        self.static = static_files()

    def close(self) -> None:
        for worker in (self.worker, self.quick):
            worker.close()

    def all(self) -> list[Route]:
        session, worker, quick = self.session, self.worker, self.quick
        one = (
            Question("about", ask.Asked, lambda _: session.about(), quick, NOW),
            Question("pixel", ask.Pixel, session.pixel, quick, NOW),
            Question("answer", ask.Answer, session.answer, worker, NOW),
            Question("shares", ask.WhichImages, session.shares, worker, NOW),
            Question("weights", ask.Level, session.weights, worker, LATER),
            Question("error", ask.Level, session.error, worker, LATER),
        )
        return [
            Route("/", self.page),
            Route("/static/{name}", self.file),
            Route("/api/path", self.path, methods=["POST"]),
            Route("/api/upload", self.upload, methods=["POST"]),
            *(Route(f"/api/{each.name}", self._respond(each), methods=["POST"]) for each in one),
        ]

    async def page(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data: blob:; "
            "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        headers = _safe({"content-security-policy": policy})
        response = Response(page_html(nonce), media_type="text/html", headers=headers)
        # The page takes the token out of its address; a redirect would lose the cookie where another site has a link.
        response.set_cookie(f"fpmc-{self.port()}", self.token, httponly=True, samesite="strict", path="/")
        return response

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.static:
            return _words("there is no such file", 404)
        kind = KINDS[name[name.rfind(".") :]]
        return Response(self.static[name], headers=_safe({"content-type": kind}))

    async def path(self, request: Request) -> Response:
        """A line of JSON for each level, as soon as it is there."""
        try:
            asked = ask.Way.model_validate_json(await _body(request, MOST_QUESTION))
        except (InputError, ValidationError) as error:
            return _words(_why(error), 400)
        wanted = self._wanted(request, self.worker)
        urgency = THEN if self.session.is_network(asked.denoiser) else SOON

        async def lines() -> AsyncIterator[str]:
            level, length = 0, 1
            try:
                while level < length and not await request.is_disconnected():
                    step = await self.worker.run(lambda at=level: self.session.step(asked, at), urgency, wanted)
                    length, level = len(step["levels"]), level + 1
                    yield json.dumps(step) + "\n"
            except OvertakenError:
                return
            except InputError as error:
                yield json.dumps({"error": str(error)}) + "\n"
            except Exception as error:                  # words for the page, the rest for the terminal
                yield json.dumps({"error": f"{type(error).__name__} on the server; its terminal tells more"}) + "\n"
                raise

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=_safe({}))

    async def upload(self, request: Request) -> Response:
        question = Question("upload", bytes, self.session.upload, self.worker, NOW)
        return await self._answered(request, question, MOST_BYTES)

    def _respond(self, question: Question) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await self._answered(request, question, MOST_QUESTION)

        return respond

    async def _answered(self, request: Request, question: Question, most: int) -> Response:
        try:
            asked = question.read(await _body(request, most))
            found = await question.worker.run(
                lambda: question.answer(asked), question.urgency, self._wanted(request, question.worker)
            )
        except OvertakenError:
            return _words("overtaken by a newer request", 409)
        except (InputError, ValidationError) as error:
            return _words(_why(error), 400)
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse(found, headers=_safe({}))

    def _wanted(self, request: Request, worker: Worker) -> Callable[[], bool]:
        """A page numbers its requests by channel; without a number a request is always wanted."""
        channel, sequence = request.headers.get("x-channel", ""), request.headers.get("x-sequence", "")
        if not channel or not sequence.isascii() or not sequence.isdecimal() or len(channel) > 64 or len(sequence) > 15:
            return lambda: True
        return worker.arrived(channel, int(sequence))


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, refused as soon as it is too long, whatever its header says."""
    said = request.headers.get("content-length", "0")
    body = bytearray()
    if not said.isdecimal() or int(said) <= most:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise InputError(f"the request is longer than {most:,} bytes; send less")


def _why(error: InputError | ValidationError) -> str:
    if isinstance(error, InputError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}"


def _words(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status, headers=_safe({}))


def _safe(headers: dict[str, str]) -> dict[str, str]:
    return {
        "cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin", **headers,
    }
