"""The first words of a connection to a Redis, and whether the answers are those of the server that was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.connectors.keyspace.base import Arg
from qd.connectors.redis.target import Target
from qd.errors import ServerBusy, ServerRefused, Unreachable, Unusable

Commands = list[tuple[Arg, ...]]


def greeting(target: Target, name: str, user: str | None, password: str | None) -> Commands:
    """Who we are, which database, and who is there. name: what its list of clients shows, "" for none."""
    commands = Commands()
    if password is not None:
        commands.append(("AUTH", user, password) if user else ("AUTH", password))
    if target.db:
        commands.append(("SELECT", target.db))
    if name:
        commands.append(("CLIENT", "SETNAME", name))
    if target.must_be_primary:
        commands.append(("ROLE",))
    commands.append(("TIME",))  # who answers this well is a Redis
    return commands


def check_welcome(target: Target, commands: Commands, replies: Sequence[Any]) -> None:
    """Raises what it was refused with, and Unreachable: another program, or no primary yet; Unusable: not this database."""
    for command, reply in zip(commands, replies, strict=True):
        if command[0] == "SELECT" and isinstance(reply, ServerRefused):
            raise Unusable(f"Redis at {target.place} has no such database: {reply}")
        if isinstance(reply, Exception) and not may_be_refused(command[0], reply):
            raise reply
        if command[0] == "ROLE" and isinstance(reply, list) and reply[0] != b"master":
            raise Unreachable(f"Redis at {target.place} is a {reply[0].decode()}: no primary is there yet")
    if not isinstance(reply, Exception) and not (isinstance(reply, list) and len(reply) == 2):
        raise Unreachable(stranger(target))


def may_be_refused(command: Arg, error: Exception) -> bool:
    """A name is a comfort, an ACL may refuse it, and ROLE too; and what TIME is refused for, the first call is told."""
    return command in ("CLIENT", "ROLE") or (command == "TIME" and not isinstance(error, ServerBusy))


def stranger(target: Target) -> str:
    return f"the server at {target.place} answers what no Redis answers: does the url name another program's port?"
