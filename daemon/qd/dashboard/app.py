"""The web application: routes, rights, forms, and templates. What pages show is in pages.py."""

from __future__ import annotations

import csv
import io
import json
import secrets
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qd import __version__
from qd.cli import output, status
from qd.cli.context import Given
from qd.dashboard.access import (
    CSRF,
    SESSION,
    TRIES,
    Access,
    CsrfTokens,
    Sessions,
    Viewer,
    known_host,
    named,
    same_origin,
    set_cookie,
)
from qd.dashboard.actions import ACTIONS, run
from qd.dashboard.lookup import PAGES
from qd.dashboard.pages import Asked, Facts, Page, words_of
from qd.dashboard.reader import Poller
from qd.errors import ConnectionLost, QdError

HERE = Path(__file__).resolve().parent
DASH = "\N{EN DASH}"  # there is no value
BODY = 64 << 10  # bytes of a form
OUTCOMES = 100  # of actions that are kept
SELF = "style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'"
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; {SELF}; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def dashboard(given: Given, access: Access) -> Starlette:
    """The ASGI application."""
    site = Site(given, access)
    routes = [
        *(Route(path, site.page(name, page)) for name, (path, page) in PAGES.items()),
        Route("/do/{action}", site.act, methods=["GET", "POST"]),
        Route("/done/{id}", site.done),
        Route("/login", site.login, methods=["GET", "POST"]),
        Route("/api/v1/{name}", site.api),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    handlers = {QdError: site.away, 404: site.missing, Exception: site.broken}
    app = Starlette(routes=routes, middleware=[Middleware(Headers)], exception_handlers=handlers)
    app.state.site = site
    return app


class Headers:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                pairs = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *pairs]
            await send(message)

        await self.app(scope, receive, sent if scope["type"] == "http" else send)


class Site:
    def __init__(self, given: Given, access: Access) -> None:
        self.given, self.access = given, access
        self.poller, self.csrf = Poller(given), CsrfTokens()
        self.outcomes = dict[str, Facts]()  # of the last actions, for the pages that show them
        self.templates = environment()

    # -- what every page goes through

    async def admitted(self, request: Request) -> Viewer | Response:
        if not known_host(request, self.access.hosts):
            host = request.headers.get("host", "")
            hint = f'add it to hosts below [dashboard]: hosts = ["{host.rpartition(":")[0] or host}"]'
            return self.message(request, 400, f"This dashboard is not known as {host!r}.", hint)
        viewer = await self.access.viewer(request)
        if viewer is not None:
            return viewer
        if self.access.login and request.method == "GET" and "json" not in request.headers.get("accept", ""):
            return RedirectResponse(link(request, "login"), 303)
        hint = "If you were logged in, your session is over: log in again." if self.access.login else ""
        return self.message(request, 403, "You may not see this dashboard.", hint)

    def asked(self, request: Request) -> Asked:
        return Asked(self.poller, request.path_params, request.query_params)

    def page(self, name: str, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = await self.admitted(request)
            if isinstance(viewer, Response):
                return viewer
            snapshot = await self.poller.current()
            facts = await page(self.asked(request), snapshot)
            form = request.query_params.get("format")
            if form == "json" and "document" in facts:
                return JSONResponse(facts["document"])
            if form == "csv" and "table" in facts:
                headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
                return Response(csv_of(*facts["table"]), media_type="text/csv", headers=headers)
            if form in ("json", "csv"):
                return self.message(request, 404, f"This page has no {form.upper()}.", "")
            tag = f'W/"{snapshot.number}-{viewer.level}"'
            if not facts.get("own") and request.headers.get("if-none-match") == tag:
                return Response(status_code=304)
            code = 404 if facts.get("row", facts.get("record", True)) is None else 200
            response = self.render(request, f"{name}.html", viewer, code=code, snapshot=snapshot, here=name, **facts)
            response.headers["ETag"] = tag
            return response

        return answer

    def render(
        self, request: Request, template: str, viewer: Viewer | None, *, code: int = 200, **facts: Any
    ) -> Response:
        cookie, token = self.csrf.issue(request)
        shared = {"viewer": viewer, "csrf": token, "link": lambda *parts, **query: link(request, *parts, **query)}
        shared |= {
            "version": __version__,
            "url": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        }
        text = self.templates.get_template(template).render(
            **{"here": "", "snapshot": None, "title": "qd"} | shared | facts
        )
        response = Response(text, code, media_type="text/html")
        if request.cookies.get(named(request, CSRF)) != cookie:
            set_cookie(request, response, CSRF, cookie)
        return response

    def message(self, request: Request, code: int, text: str, hint: str) -> Response:
        return self.render(request, "message.html", None, code=code, title=text, text=text, hint=hint)

    async def away(self, request: Request, error: Exception) -> Response:
        if isinstance(error, ConnectionLost):
            return self.message(request, 503, "The server does not answer.", str(error))
        return self.message(request, 404, "This cannot be shown.", str(error))

    async def missing(self, request: Request, error: Exception) -> Response:
        return self.message(request, 404, "There is no such page here.", getattr(error, "detail", ""))

    async def broken(self, request: Request, error: Exception) -> Response:
        """A bug. Starlette logs the traceback."""
        response = self.message(request, 500, "This page failed.", "The log of the dashboard has the traceback.")
        response.headers.update(HEADERS)  # this handler is outside the middleware
        return response

    # -- logging in

    async def login(self, request: Request) -> Response:
        """A link shows a form that sends itself: a chat or mail program that looks at the link does not use it up."""
        access = self.access
        if not isinstance(access, Sessions) or not known_host(request, access.hosts):
            return self.message(request, 404, "There is no login here.", "")
        facts: Facts = {"token": request.query_params.get("token", ""), "tried": False, "users": bool(access.users)}
        if request.method != "POST":
            return self.render(request, "login.html", None, title="Log in", **facts)
        form = await form_of(request)
        if not (same_origin(request) and self.csrf.fits(request, form.get("csrf", ""))):
            return self.message(request, 403, "This form is too old, or from another host.", "Load the page again.")
        address = request.client.host if request.client else ""
        if not access.may_try(address):
            hint = f"After {TRIES} wrong ones, an address waits for a minute."
            return self.message(request, 429, f"Too many wrong logins from {address}.", hint)
        viewer = await access.login_of(form)
        if viewer is None:
            facts |= {"token": "", "tried": True}
            return self.render(request, "login.html", None, code=403, title="Log in", **facts)
        access.succeeded(address)
        response = RedirectResponse(link(request, ""), 303)
        set_cookie(request, response, SESSION, access.issue(viewer))
        return response

    # -- actions

    async def act(self, request: Request) -> Response:
        viewer = await self.admitted(request)
        if isinstance(viewer, Response):
            return viewer
        name = request.path_params["action"]
        if (action := ACTIONS.get(name)) is None:
            return self.message(request, 404, f"There is no action {name!r}.", "")
        post = request.method == "POST"
        form = await form_of(request) if post else dict(request.query_params)
        if post and not (same_origin(request) and self.csrf.fits(request, form.get("csrf", ""))):
            return self.message(request, 403, "This form is too old, or from another host.", "Load the page again.")
        if not viewer.may(action.level):
            return self.message(request, 403, f"This needs the level {action.level}; you have {viewer.level}.", "")
        needed = [field.name for field in action.fields if field.needed] if post else []
        if lacks := [need for need in (*action.needs, *needed) if not form.get(need)]:
            return self.message(request, 400, f"The link lacks {', '.join(lacks)}.", "")
        if any("\0" in value for value in form.values()):
            return self.message(request, 400, "A value contains a NUL character, which no command takes.", "")
        title = action.title.format_map(Named(form))
        words = action.words({field.name: field.value for field in action.fields} | form)
        facts: Facts = {"title": title, "action": action, "name": name, "form": form, "command": shell(words)}
        facts["back"] = local(form.get("back", ""), request)
        typed = bool(action.typed) and form.get("typed") != form.get(action.typed)
        if not post or typed:
            return self.render(request, "confirm.html", viewer, code=400 if post else 200, wrong=post, **facts)
        code, printed = await run(words, self.given, viewer)
        self.poller._at = 0.0  # the next page reads what has changed
        self.poller.looks.clear()
        id = secrets.token_urlsafe(12)
        self.outcomes[id] = facts | {"exit": code, "printed": printed, "actor": viewer.name}
        while len(self.outcomes) > OUTCOMES:
            del self.outcomes[next(iter(self.outcomes))]
        return RedirectResponse(link(request, "done", id), 303)  # reloading the page does not repeat the action

    async def done(self, request: Request) -> Response:
        viewer = await self.admitted(request)
        if isinstance(viewer, Response):
            return viewer
        facts = self.outcomes.get(request.path_params["id"])
        if facts is None or facts["actor"] != viewer.name:
            return self.message(request, 404, "The outcome of this action is not kept any more.", "Events lists it.")
        return self.render(request, "done.html", viewer, code=200 if facts["exit"] == 0 else 409, **facts)

    # -- for programs

    async def api(self, request: Request) -> Response:
        viewer = await self.admitted(request)
        if isinstance(viewer, Response):
            return JSONResponse({"error": "forbidden"}, viewer.status_code if viewer.status_code != 303 else 401)
        page = PAGES.get(request.path_params["name"])
        snapshot = await self.poller.current()
        if page is not None and "{" not in page[0]:
            facts = await page[1](self.asked(request), snapshot)
            if "document" in facts:
                return JSONResponse(facts["document"])
        if request.path_params["name"] == "status":
            return JSONResponse(json.loads(json.dumps(status.document(snapshot.state), default=str)))
        known = ", ".join(["status", *(name for name, (path, _) in PAGES.items() if "{" not in path)])
        return JSONResponse({"error": f"unknown document; known: {known}"}, 404)


class Named(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "the"


# -- text


def shell(words: Sequence[str]) -> str:
    """The command as one would type it."""
    return shlex.join(["qd", *(word for word in words if word != "--yes")])


def csv_of(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows([[cell(value) for value in row] for row in rows])
    return out.getvalue()


def cell(value: object) -> str:
    """Text that a spreadsheet does not take for a formula."""
    value = (
        " ".join(map(str, value)) if isinstance(value, list) else words_of(value) if isinstance(value, dict) else value
    )
    text = "" if value is None else output.clean(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and not isinstance(value, int | float) else text


async def form_of(request: Request) -> dict[str, str]:
    """A form as browsers send it. Raises nothing: what is too long or no form has no fields."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY:
            return {}
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def link(request: Request, *parts: str, **query: str) -> str:
    """The address of a page below the mount point. Each part is one segment, whatever it contains."""
    path = "/".join(quote(part, safe="") for part in parts)
    asked = {key: value for key, value in query.items() if value not in ("", None)}
    return f"{request.scope.get('root_path', '')}/{path}" + (f"?{urlencode(asked)}" if asked else "")


def local(address: str, request: Request) -> str:
    """An address of this dashboard to go back to; others are not followed."""
    base = request.scope.get("root_path", "") + "/"
    return address if address.startswith(base) and not address.startswith("//") and "\\" not in address else base


def environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, finalize=shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "counted": output.count,
        "duration": output.duration,
        "number": number,
        "moment": moment,
        "lines": lines,
        "words": words_of,
    }
    return found


def shown(value: object) -> object:
    """Control and formatting characters of payloads and reasons are escaped, and secrets masked."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else output.clean(value) if isinstance(value, str) else value


def lines(text: str) -> Markup:
    return Markup("\n").join(escape(output.clean(line.replace("\t", "    "))) for line in text.split("\n"))


def number(value: float | None) -> str:
    return DASH if value is None else f"{value:,}"


def moment(at: float | str | None) -> Markup:
    """A time, unix seconds or ISO 8601, that live.js shows in the zone of the viewer."""
    if at is None:
        return Markup(DASH)
    utc = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{0}" title="{0}">{1} UTC</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%SZ}", f"{utc:%b %d, %H:%M:%S}"
    )
