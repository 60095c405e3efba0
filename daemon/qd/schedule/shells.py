"""Whether a line for /bin/sh names a command that is not there. Told only where it is sure: a shell is a language."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

HARMLESS = {
    "echo", "printf", "true", "false", "test", "[", ":", "pwd", "read", "umask", "ulimit", "wait", "kill", "set",
}  # fmt: skip
# What may change where commands are looked for, or begins something that is more than a command.
UNSURE = {
    ".", "source", "cd", "eval", "exec", "export", "alias", "unalias", "command", "hash", "type", "function", "if", "then",
    "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in", "select", "time", "coproc", "trap",
    "return", "exit", "break", "continue", "local", "readonly", "shift", "getopts", "unset", "times", "jobs", "bg", "fg",
    "{", "}", "!", "[[",
}  # fmt: skip
PLAIN = re.compile(r"[\w./+@-]+")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=.*", re.DOTALL)
BETWEEN = {"|", "&&", ";", "&"}


def missing(line: str, folders: tuple[Path, ...] = ()) -> str:
    """The first command of the line that is not on this machine, "" where all are, or it cannot be told. folders: where a
    path that is not absolute may begin."""
    return next((word for word in commands(line) if not there(word, folders)), "")


def commands(line: str) -> Iterator[str]:
    """The first word of each command of the line, up to what is not understood."""
    if any(sign in line for sign in ("`", "$(", "<<", "\n", "||")):
        return
    first = True
    for token in tokens(line):
        if token in BETWEEN:
            first = True
            continue
        if not first:
            continue
        if (set_ := ASSIGNMENT.fullmatch(token)) is not None:
            if set_[1] == "PATH":
                return
            continue
        if token in UNSURE or not PLAIN.fullmatch(token):
            return
        first = False
        if token not in HARMLESS:
            yield token


def tokens(line: str) -> list[str]:
    """Words, and the signs between them. [] for a line with quotes that do not close."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return []


def there(word: str, folders: tuple[Path, ...]) -> bool:
    if "/" not in word:
        return shutil.which(word) is not None
    places = [Path(word)] if word.startswith("/") else [folder / word for folder in folders]
    return not places or any(os.access(place, os.X_OK) and place.is_file() for place in places)
