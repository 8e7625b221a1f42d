"""The server answers its own page and nobody else, and takes nothing it cannot bound."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import struct
import threading
import time
import zlib
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from PIL import Image

import fpmc
from fpmc.explore.serve import running, serve
from fpmc.explore.upload import MOST_BYTES, read_picture
from fpmc.explore.worker import LATER, NOW, Job, OvertakenError, Worker


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def send(address):
    """One request, with the token unless it is told otherwise."""
    parts = urlsplit(address)
    token = parse_qs(parts.query)["token"][0]

    def send(method: str, path: str, body: bytes | None = None, token: str | None = token, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=20)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["x-fpmc-token"] = token
        connection.request(method, path, body, given)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())

    send.token, send.port = token, parts.port
    return send


ROUTES = [
    ("GET", "/"), ("GET", "/static/main.js"), ("POST", "/api/about"), ("POST", "/api/path"), ("POST", "/api/shares"),
    ("POST", "/api/pixel"), ("POST", "/api/answer"), ("POST", "/api/upload"), ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_nothing_is_answered_without_the_token(send, method, path, token):
    reply = send(method, path, b"{}", token if token != "é" else "\xe9")
    assert reply.status == 401
    assert b"images of" not in reply.body


def test_the_token_becomes_a_cookie_that_no_script_reads(send):
    reply = send("GET", f"/?token={send.token}", token=None)
    cookie = reply.headers["set-cookie"]
    assert reply.status == 200
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert send.token not in reply.body.decode()
    assert send("POST", "/api/about", b"{}", None, cookie=cookie.split(";")[0]).status == 200
    assert send("POST", f"/api/about?token={send.token}", b"{}", None).status == 401, "in the page's address alone"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}"])
def test_another_host_is_refused(send, host):                       # DNS rebinding
    assert send("POST", "/api/about", b"{}", host=host.format(port=send.port)).status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused(send, origin):                   # another page of the same browser
    assert send("POST", "/api/about", b"{}", origin=origin.format(port=send.port)).status == 403


def test_requests_from_other_sites_are_refused(send):
    assert send("POST", "/api/about", b"{}", sec_fetch_site="cross-site").status == 403
    assert send("GET", "/static/main.js", sec_fetch_site="same-site").status == 403
    assert send("POST", "/api/about", b"{}", origin=f"http://127.0.0.1:{send.port}").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../__init__.py", "/static/%2e%2e/__init__.py", "/static/..%2f..%2fserver.py", "/static//etc/passwd",
        "/etc/passwd", "/static/__init__.py", "/static/index.html", "/static/main.js%00.css", "//etc/passwd",
        "/static/..\\server.py",
    ],
)
def test_no_path_of_the_file_system_can_be_asked_for(send, path):
    reply = send("GET", path)
    assert reply.status == 404
    assert b"root:" not in reply.body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/path", b"not json"),
        ("/api/path", b"[1, 2"),
        ("/api/path", b'{"denoiser": 99}\n'),
        ("/api/path", b'{"denoiser": -1}'),
        ("/api/path", b'{"denoiser": 0, "file": "/etc/passwd"}'),
        ("/api/path", b'{"denoiser": 0, "start": {"seed": 1e400}}'),
        ("/api/shares", b'{"denoiser": 0, "level": 9, "region": [0, 0, 99999, 99999]}'),
        ("/api/shares", b'{"denoiser": 0, "level": 9999}'),
        ("/api/shares", b'{"denoiser": 0, "level": 9, "top": 100000000}'),
        ("/api/shares", b'{"denoiser": 0, "level": 9, "start": {"own": {"picture": "../../etc/passwd", "sigma": 1}}}'),
        ("/api/pixel", b'{"denoiser": 0, "sigma": NaN, "y": 0, "x": 0}'),
        ("/api/pixel", b'{"denoiser": 0, "sigma": 1, "y": 4000000, "x": 0}'),
        ("/api/answer", b'{"denoiser": 2, "level": 1, "without": [1]}'),
        ("/api/upload", b"GIF89a" + bytes(100)),
        ("/api/upload", b""),
    ],
)
def test_hostile_questions_are_refused_in_words(send, path, body):
    reply = send("POST", path, body)
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert reply.status == 400 or (path == "/api/path" and reply.status == 200)
    assert len(lines) == 1
    assert lines[0]["error"]
    assert b"Traceback" not in reply.body
    assert send("POST", "/api/about", b"{}").status == 200, "and the next one is answered"


def test_long_requests_are_cut_off(send):
    assert send("POST", "/api/upload", bytes(MOST_BYTES + 1)).status == 400
    assert send("POST", "/api/shares", b" " * (1 << 20)).status == 400
    lying = send("POST", "/api/about", iter([b" " * 65536] * 20))          # chunked: no length is told
    assert lying.status == 400
    assert send("PUT", "/api/about", b"{}").status == 405


def png(width: int, height: int) -> bytes:
    """The header of a PNG that claims to be large, with hardly anything behind it."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


def test_pictures_are_bounded_before_they_are_decoded():
    began = time.perf_counter()
    for data in (png(100_000, 100_000), png(4097, 1), png(50, 50), b"\x89PNG\r\n\x1a\n", b"%PDF-1.4", b"<svg/>"):
        with pytest.raises(fpmc.InputError):
            read_picture(data, (1, 10, 10))
    assert time.perf_counter() - began < 2
    buffer = io.BytesIO()
    Image.fromarray(np.arange(100, dtype=np.uint8).reshape(10, 10)).save(buffer, "PNG")
    found = read_picture(buffer.getvalue(), (1, 10, 10))
    assert torch.equal((found * 127.5 + 127.5).round().flatten(), torch.arange(100.0))
    assert read_picture(buffer.getvalue(), (3, 20, 20)).shape == (1, 3, 20, 20)


def test_headers_keep_the_page_to_itself(send):
    headers = send("GET", "/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"


def test_it_listens_on_loopback_alone(session, capsys):
    with pytest.raises(fpmc.InputError, match="is not in 0"):
        serve(session, port=70000, browser=False)
    with running(session) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        with pytest.raises(fpmc.InputError, match="cannot be used"):
            serve(session, port=urlsplit(address).port, browser=False)


def test_urgent_jobs_go_first_and_overtaken_ones_are_dropped():
    async def scene() -> list[str]:
        worker, gate, order = Worker(), threading.Event(), []
        wanted = worker.arrived("a", 1)
        first = asyncio.create_task(worker.run(gate.wait, NOW, lambda: True))
        await asyncio.sleep(0.05)
        later = asyncio.create_task(worker.run(lambda: order.append("later"), LATER, lambda: True))
        old = asyncio.create_task(worker.run(lambda: order.append("old"), NOW, wanted))
        new = asyncio.create_task(worker.run(lambda: order.append("new"), NOW, worker.arrived("a", 2)))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(first, later, new)
        with pytest.raises(OvertakenError):
            await old
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 / 0, NOW, lambda: True)
        worker.close()
        assert not worker.thread.is_alive()
        return order

    assert asyncio.run(scene()) == ["new", "later"]


def test_closing_waits_for_the_job_that_runs_and_starts_no_other():
    """A kernel that still runs when Python ends would bring the process down."""
    worker, began, done = Worker(), threading.Event(), []

    def job(name: str) -> None:
        began.set()
        time.sleep(0.2)
        done.append(name)

    for name in ("first", "second"):
        worker.jobs.put(Job(NOW, len(name), lambda name=name: job(name), lambda: True, lambda result, error: None))
    began.wait(5)
    worker.close()
    assert done == ["first"]


def test_a_path_comes_line_by_line(send):
    reply = send("POST", "/api/path", b'{"denoiser": 0}')
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert [line["level"] for line in lines] == list(range(18))
    new, old = ({"x_channel": "tab.path", "x_sequence": number} for number in ("7", "3"))
    assert len(send("POST", "/api/path", b'{"denoiser": 0}', **new).body.splitlines()) == 18
    assert send("POST", "/api/path", b'{"denoiser": 0}', **old).body == b""
    assert send("POST", "/api/shares", b'{"denoiser": 0, "level": 3}', **old).status == 409
