"""All commands of the keyspace on tables, by their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qd.connectors.database import hashes, lists, queued, sorted, strings
from qd.connectors.database.step import Step
from qd.connectors.database.words import OK, Command, Commands, Status, Words
from qd.errors import ServerRefused

COMMANDS: Commands = {**strings.COMMANDS, **hashes.COMMANDS, **lists.COMMANDS, **sorted.COMMANDS}


def command_of(words: Words) -> Command:
    """Raises ServerRefused when it is none of those that qd uses, or has too few words."""
    name = words[0].decode("ascii", "replace").upper()
    found = COMMANDS.get(name)
    if found is None:
        raise ServerRefused(f"ERR unknown command '{name}' (in a database there are: {', '.join(COMMANDS)})")
    if len(words) - 1 < found.least:
        raise ServerRefused(f"ERR wrong number of arguments for '{name.lower()}' command")
    return found


def names_of(command: Command, words: Words) -> Words:
    """Those of its words that are names."""
    return words[1:] if command.names < 0 else words[1 : 1 + command.names]


def own_names(step: Step, names: Words) -> list[bytes]:
    """Those that stand in tables of the keyspace."""
    return [name for name in names if queued.place_of(step, name) is None]


def run(step: Step, words: Words) -> Any:
    """One command in this step. Raises ServerRefused, and ConnectionLost as the step's own calls do."""
    command, name = command_of(words), words[0].decode().upper()
    if command.names and (place := queued.place_of(step, words[1])) is not None:
        if command.names < 0:
            return sum(queued.run(step, queued.place_of(step, each) or place, name, ()) for each in words[1:])
        return queued.run(step, place, name, words[2:])
    return command.run(step, words[1:])


def known(words: Words) -> Command | None:
    """None: it will be refused, or it is MULTI or EXEC."""
    try:
        return command_of(words)
    except ServerRefused:
        return None


def names_in(words: Words) -> Words:
    found = known(words)
    return names_of(found, words) if found is not None else ()


def run_many(step: Step, lines: Sequence[Words]) -> list[Any]:
    """A reply each. Refusals stand in the list, and nothing of those was done."""
    replies, kept = list[Any](), list[Any]()
    inside = False
    for words in lines:
        word = words[0].upper()
        if word == b"MULTI":
            inside = True
            replies.append(OK)
        elif word == b"EXEC":
            replies.append(kept)
            inside, kept = False, []
        elif inside:
            kept.append(answer(step, words))
            replies.append(Status(b"QUEUED"))
        else:
            replies.append(answer(step, words))
    return replies


def answer(step: Step, words: Words) -> Any:
    """As `run`, a refusal as an exception."""
    try:
        return run(step, words)
    except ServerRefused as error:
        if step.broken:
            raise
        return error
