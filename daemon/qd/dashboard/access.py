"""Who may look and who may act: closed by default.

Callback     mounted: the surrounding program says who it is
Sessions     `qd dashboard`: a one-time link, or users of [dashboard], exchanged for a cookie
CsrfTokens, same_origin    what every POST needs besides the level of its action
known_host   the Host header
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

LEVELS = ("read", "operate", "write")
SESSION, CSRF = "qd_session", "qd_csrf"  # cookies
HOURS = 12  # that a session lasts
LINK = 600.0  # seconds that a one-time link is valid
TRIES, TRIES_SECONDS = 10, 60.0  # wrong logins of one address within so many seconds
ADDRESSES = 10_000  # whose wrong logins are counted
COST = {"n": 1 << 14, "r": 8, "p": 1}  # of scrypt: 16 MB and about 50 ms
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Viewer:
    name: str
    level: str

    def may(self, level: str) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)


class Access(Protocol):
    hosts: Sequence[str]  # accepted in the Host header; (): any
    login: bool  # whether a stranger is shown the login page

    async def viewer(self, request: Request) -> Viewer | None: ...


class Callback:
    hosts: Sequence[str] = ()
    login = False

    def __init__(self, allow: Callable[[Request], Any]) -> None:
        self.allow = allow

    async def viewer(self, request: Request) -> Viewer | None:
        found = self.allow(request)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, str):
            found = ("dashboard", found)
        if found is None or found[1] not in LEVELS:
            return None
        return Viewer(str(found[0]), found[1])


@dataclass
class Sessions:
    """users: name -> (level, hash). key: signs cookies; a new one at each start, so that a restart ends all sessions."""

    hosts: Sequence[str]
    users: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    login = True
    _link: tuple[str, float] = ("", 0.0)
    _wrong: dict[str, deque[float]] = field(default_factory=dict)
    _hashing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "qd login"))

    def new_link(self) -> str:
        """The token of a link that can be used once, by the user who started the dashboard."""
        self._link = secrets.token_urlsafe(24), time.monotonic() + LINK
        return self._link[0]

    def may_try(self, address: str) -> bool:
        """Whether this address may try to log in; the attempt counts as wrong until `succeeded`."""
        if address not in self._wrong and len(self._wrong) >= ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        wrong, at = self._wrong.setdefault(address, deque(maxlen=TRIES)), time.monotonic()
        if len(wrong) == TRIES and at - wrong[0] <= TRIES_SECONDS:
            return False
        wrong.append(at)
        return True

    def succeeded(self, address: str) -> None:
        self._wrong.pop(address, None)

    async def login_of(self, form: Mapping[str, str]) -> Viewer | None:
        if token := form.get("token"):
            return self.by_link(token)
        name, password = form.get("name", ""), form.get("password", "")
        # In a thread of its own: many logins at once do not delay pages.
        return await asyncio.get_running_loop().run_in_executor(self._hashing, self.by_password, name, password)

    def by_link(self, token: str) -> Viewer | None:
        wanted, until = self._link
        if not wanted or time.monotonic() > until or not hmac.compare_digest(token.encode(), wanted.encode()):
            return None
        self._link = ("", 0.0)
        return Viewer("dashboard", "write")

    def by_password(self, name: str, password: str) -> Viewer | None:
        level, hashed = self.users.get(name, ("read", UNKNOWN))  # an unknown name takes as long
        return Viewer(name, level) if verify(password, hashed) and name in self.users else None

    def issue(self, viewer: Viewer) -> str:
        """The cookie of a new session."""
        text = json.dumps([viewer.name, viewer.level, time.time() + HOURS * 3600])
        value = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{value}.{signature(self.key, value)}"

    async def viewer(self, request: Request) -> Viewer | None:
        value, _, sign = request.cookies.get(named(request, SESSION), "").partition(".")
        if not hmac.compare_digest(sign.encode(), signature(self.key, value).encode()):
            return None
        name, level, until = json.loads(base64.urlsafe_b64decode(value))
        return Viewer(name, level) if time.time() < until else None


def named(request: Request, cookie: str) -> str:
    """With the port, because browsers send a cookie to all ports of a host: each dashboard there has its own sessions."""
    return f"{cookie}_{request.url.port}" if request.url.port else cookie


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    path = request.scope.get("root_path", "") or "/"
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    response.set_cookie(
        named(request, name), value, HOURS * 3600, path=path, secure=secure, httponly=True, samesite="lax"
    )


def signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def hashed(password: str) -> str:
    """`scrypt$SALT$HASH`, for the users of [dashboard]."""
    salt = secrets.token_hex(16)
    return f"scrypt${salt}${hashlib.scrypt(password.encode(), salt=salt.encode(), **COST).hex()}"


def verify(password: str, wanted: str) -> bool:
    _, salt, digest = wanted.split("$")
    return hmac.compare_digest(hashlib.scrypt(password.encode(), salt=salt.encode(), **COST).hex(), digest)


UNKNOWN = "scrypt$00$00"


class CsrfTokens:
    """A token is the signature of a random cookie: a page of another host can neither read nor set it."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)

    def issue(self, request: Request) -> tuple[str, str]:
        """The cookie, which is new if the browser has none, and the token for the forms of a page."""
        cookie = request.cookies.get(named(request, CSRF)) or secrets.token_urlsafe(18)
        return cookie, signature(self.key, cookie)

    def fits(self, request: Request, token: str) -> bool:
        cookie = request.cookies.get(named(request, CSRF), "")
        return bool(cookie) and hmac.compare_digest(token.encode(), signature(self.key, cookie).encode())


def same_origin(request: Request) -> bool:
    """Whether a page of this host sent the request. A browser sends Origin or Referer with every POST."""
    source = request.headers.get("origin") or request.headers.get("referer") or ""
    return bool(source) and part(source, "netloc") == request.headers.get("host", "")


def known_host(request: Request, hosts: Sequence[str]) -> bool:
    """Against DNS rebinding: whether the Host header names this dashboard."""
    return not hosts or part(f"//{request.headers.get('host', '')}", "hostname") in hosts


def part(address: str, name: str) -> str:
    """A part of an address; "" if it is none."""
    try:
        return getattr(urlsplit(address), name) or ""
    except ValueError:
        return ""
