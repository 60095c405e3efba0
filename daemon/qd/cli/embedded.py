"""`qd embedded status` and `qd embedded stop`: the private server behind `url = "embedded:"`. Neither starts one."""

from __future__ import annotations

import click

from qd import embedded
from qd.cli import context, output


@click.group(name="embedded")
def command() -> None:
    """Look at the private server of `url = "embedded:"`, or stop it."""


@command.command()
@context.options
def status() -> int:
    """Say whether this project's server runs, and where: exit 0, or 1 when it does not."""
    settings = context.settings()
    root = settings.root
    found = embedded.status(root)
    if context.given().json:
        output.document(described(found))
    elif found is None:
        named = any((each.url or "").startswith("embedded:") for each in settings.connections.values())
        output.say(context.not_running(root) if named else 'no connection here has `url = "embedded:"`, nothing runs')
    else:
        up, memory = output.duration(found.uptime), f"{found.memory / 1_048_576:.1f}M"
        output.say(f"{found.server}  pid {found.pid}  up {up}  memory {memory}  {found.url}  data in {found.folder}")
    return 0 if found else 1


@command.command()
@context.options
def stop() -> int:
    """Stop this project's server and wait for its end; its queues stay in .qd/: exit 0, or 1 when none was running."""
    root = context.settings().root
    if embedded.stop(root):
        output.say(f"stopped; the queues are kept in {root / '.qd' / 'embedded'}")
        return 0
    output.say(f"the embedded server of {root} was not running")
    return 1


def described(found: embedded.Status | None) -> dict[str, object]:
    if found is None:
        return {"running": False}
    facts = {name: getattr(found, name) for name in ("pid", "server", "url", "memory", "uptime")}
    return {"running": True, **facts, "folder": str(found.folder)}
