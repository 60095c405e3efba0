"""The dashboard: the system in a browser. `qd dashboard` serves it; asgi() mounts it in another program.

    servers  <- reader.py, at most every 2 s for all viewers <-  app.py (pages, JSON, CSV)  <- access.py <-  browser
    servers  <- `qd pause ...`, one process for each action  <-  actions.py                 <- access.py <-  browser

Pages are HTML from templates, charts are SVG (charts.py); both work without JavaScript, which only fetches the page again
every few seconds. A button runs the command that it shows, as its user, so that `qd events` names who did what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request


def asgi(*, config: str | None = None, app: str | None = None, allow: Callable[[Request], Any]) -> Starlette:
    """The dashboard for `app.mount("/qd", asgi(allow=...))` of Starlette, FastAPI or Django.

    config, app: as --config and --app of the commands. allow(request): who this is, `("ada", "read")`, "operate" or
    "write" in place of "read"; None: nobody, which is answered with 403. It may be async.
    """
    from qd.cli.context import Given
    from qd.dashboard.access import Callback
    from qd.dashboard.app import dashboard

    return dashboard(Given(config=config, app=app), Callback(allow))
