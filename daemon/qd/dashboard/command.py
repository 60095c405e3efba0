"""`qd dashboard`: serves the dashboard until Ctrl-C or TERM."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import click
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from qd.cli import context, output
from qd.dashboard.access import LOOPBACK, Sessions, hashed
from qd.dashboard.app import dashboard
from qd.errors import ConfigError

LISTEN = "127.0.0.1:8640"


@click.command("dashboard")
@click.option(
    "--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="Serve on this address; port 0: any."
)
@click.option(
    "--hash", "hashes", is_flag=True, help="Ask for a password and print its hash, for `users` of [dashboard]."
)
@click.option("--listen-fd", "descriptor", type=int, hidden=True, help="Serve on this socket, inherited from `qd dev`.")
@context.options
def command(listen: str, hashes: bool, descriptor: int | None) -> None:
    """Serve the dashboard: the system in a browser.

    On a loopback address it prints a link that can be used once. Other addresses need `users` below [dashboard].
    """
    if hashes:
        return output.say(hashed(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)))
    listener = None if descriptor is None else socket.socket(fileno=descriptor)
    host, port = listener.getsockname() if listener else address_of(listen)
    options = context.settings().dashboard
    access = Sessions((*LOOPBACK, host, *options.hosts), users_of(options.users))
    if not access.users and not is_loopback(host):
        users = 'write users = ["NAME:LEVEL:HASH"] below [dashboard] (`qd dashboard --hash` prints a HASH)'
        way = f"{users}, or listen on 127.0.0.1"
        raise ConfigError(f"the dashboard would be open to every user who reaches {listen}: {way}")
    given = context.given()
    listener = listener or bound(host, port)
    port = listener.getsockname()[1]
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}{options.prefix}/"
    if access.users:
        click.echo(f"dashboard: {base}")
    else:
        click.echo(f"dashboard: {base}login?token={access.new_link()}")  # output.say would mask the token
        output.note("This link can be used once, within 10 minutes.")
    application = dashboard(given, access)
    if options.prefix:
        application = Starlette(routes=[Mount(options.prefix, application)])
    # proxy_headers: a client could choose its address, and so avoid the limit of wrong logins.
    quiet = uvicorn.Config(application, log_level="warning", access_log=False, server_header=False, proxy_headers=False)
    uvicorn.Server(quiet).run([listener])


def address_of(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen} is not HOST:PORT, such as {LISTEN}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bound(host: str, port: int) -> socket.socket:
    """Raises ConfigError if the address cannot be used."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        way = "choose another one with --listen"
        raise ConfigError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; {way}") from None


def users_of(users: Sequence[str]) -> dict[str, tuple[str, str]]:
    parts = [user.split(":") for user in users]
    return {name: (level, digest) for name, level, digest in parts}
