"""JSON over HTTP to one server: bounded time, bounded answers, retries of the connection alone, a key never shown.

Redirects are not followed, and proxies of the environment are not used: nothing goes to another address.
"""

import http.client
import json
import os
import re
import socket
import textwrap
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from reference.conformance.channel import (
    MAX_LINE_BYTES,
    PIECE_BYTES,
    AnswerTimeoutError,
    EngineDiedError,
    HarnessError,
)
from reference.conformance.remote import EngineError
from reference.errors import Refusal, RefusedError

KEY_VARIABLE = "GOLDEN_LLAMA_API_KEY"
KEY_FORM = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""A bearer token (RFC 6750, section 2.1). Nothing in it is escaped in JSON or repr, so it can be found and hidden."""

HIDDEN = b"***"
PAUSES_S = (0.2, 0.8)
"""Waits between attempts to connect; once the request is sent, nothing is sent again."""
CONNECT_S = 10.0

CONNECTIONS: Mapping[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


class NoConnectionError(HarnessError):
    """Nobody listens at the address, at any attempt."""


class HttpChannel:
    """A server that is asked in JSON, a connection for each question.

    Raises: USAGE for an address with more than scheme, host, port and path, and for a key that no header can carry.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        self._address = _address(url)
        self._key = _key()
        self._limit_s = limit_s

    @property
    def url(self) -> str:
        return self._address.geturl()

    def ask(self, path: str, question: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer to a question that is POSTed; without one, to a GET.

        Raises: NoConnectionError; AnswerTimeoutError; EngineDiedError, where the connection ends before the answer;
        EngineError for a status of 400 and above; HarnessError for a redirect, too much, and what is no JSON.
        """
        method = "GET" if question is None else "POST"
        status, body = self._exchange(method, path, None if question is None else json.dumps(question).encode())
        if status >= 400:
            shown = textwrap.shorten(body.decode(errors="replace"), 300)
            raise EngineError(f"HTTP {status} for {method} {path}: {shown or 'no reason told'}")
        if status >= 300:
            raise HarnessError(f"HTTP {status} for {method} {path}: redirects are not followed")
        try:
            return json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            shown = body[:80].decode(errors="replace")
            raise HarnessError(f"the answer {shown!r} is not JSON ({error})") from None

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body of the answer, the key in it hidden. A watch ends the connection when the time is over."""
        deadline = time.monotonic() + self._limit_s
        connection = self._connect(deadline)
        assert connection.sock is not None
        is_late = threading.Event()
        watch = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [connection.sock, is_late])
        watch.daemon = True
        watch.start()
        try:
            connection.request(method, self._address.path + path, body, self._headers())
            response = connection.getresponse()
            answer = _read(response)
        except (OSError, http.client.HTTPException) as error:
            if is_late.is_set():
                raise AnswerTimeoutError(f"no answer within {self._limit_s:g} s") from None
            raise EngineDiedError(f"the connection ended before the answer: {type(error).__name__}") from None
        finally:
            watch.cancel()
            connection.close()
        if is_late.is_set():
            raise AnswerTimeoutError(f"no whole answer within {self._limit_s:g} s")
        if response.length:
            raise EngineDiedError(f"the connection ended {response.length} bytes before the answer did")
        return response.status, answer if self._key is None else answer.replace(self._key.encode(), HIDDEN)

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        """An open connection. Raises: NoConnectionError after the last attempt."""
        assert self._address.hostname is not None
        for pause_s in (*PAUSES_S, None):
            limit_s = max(0.001, min(CONNECT_S, deadline - time.monotonic()))
            connection = CONNECTIONS[self._address.scheme](
                self._address.hostname, self._address.port, timeout=limit_s
            )
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                connection.close()
                reason = getattr(error, "strerror", None) or type(error).__name__
            else:
                connection.sock.settimeout(None)  # from here on the watch alone
                return connection
            if pause_s is not None:
                time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
        raise NoConnectionError(f"no connection to {self.url} at {len(PAUSES_S) + 1} attempts: {reason}")

    def _headers(self) -> dict[str, str]:
        key = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close", **key}


def _address(url: str) -> SplitResult:
    """The parts of an address. What is refused is not repeated: it may hold a secret."""
    sentence = "an HTTP engine is http[s]://host[:port][/path], without user, query and fragment"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RefusedError(Refusal.USAGE, sentence) from None
    is_plain = parts.username is None and parts.password is None and not (parts.query or parts.fragment)
    is_whole = parts.scheme in CONNECTIONS and bool(parts.hostname) and port != 0
    if not (is_plain and is_whole and re.fullmatch(r"[!-~]+", url)):
        raise RefusedError(Refusal.USAGE, f"{sentence}; a key comes from {KEY_VARIABLE}")
    return parts._replace(path=parts.path.rstrip("/"))


def _key() -> str | None:
    key = os.environ.get(KEY_VARIABLE) or None
    if key is not None and not KEY_FORM.fullmatch(key):
        raise RefusedError(
            Refusal.USAGE, f"{KEY_VARIABLE} holds no bearer token (RFC 6750): letters, digits, -._~+/="
        )
    return key


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body. Raises: HarnessError for one that is too large."""
    body = bytearray()
    while piece := response.read(PIECE_BYTES):
        body += piece
        if len(body) > MAX_LINE_BYTES:
            raise HarnessError(f"the answer exceeds {MAX_LINE_BYTES} bytes")
    return bytes(body)


def _cut(sock: socket.socket, is_late: threading.Event) -> None:
    """Ends a connection while another thread reads from it; the plain socket's shutdown, also below TLS."""
    is_late.set()
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
