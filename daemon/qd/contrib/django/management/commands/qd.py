"""`manage.py qd work`, `manage.py qd status`, ...: passes all arguments to `qd`, which sets the exit code."""

from __future__ import annotations

import io
import sys
from argparse import REMAINDER
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser

from qd.contrib.command import become_qd
from qd.contrib.django.project import chosen, close, made
from qd.errors import ConfigError
from qd.process.exit_codes import Exit

DJANGOS = ("--settings", "--pythonpath")  # already handled by manage.py
FORKS = {"work", "dev"}  # these run until they are stopped, in processes of their own


class Command(BaseCommand):
    help = "Run background jobs and manage the workers; see `manage.py qd --help`."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own shape

    def run_from_argv(self, argv: list[str]) -> None:
        """From the command line: this process becomes `qd`."""
        try:
            app = chosen()
        except ConfigError as error:
            self.stderr.write(f"qd: {error}")
            sys.exit(Exit.CONFIG)
        become_qd(without(argv[2:]) or ["--help"], app, "python manage.py qd")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=REMAINDER)  # with their options, which are qd's

    def handle(self, *args: Any, **options: Any) -> None:
        """From call_command("qd", "dispatch", ...): in this process. Raises CommandError with qd's exit code and the last
        line that it wrote to stderr. stdout, stderr: files for what it prints, except for `work` and `dev`."""
        from qd.cli.main import command

        words = list(map(str, args or options.get("words", ())))
        if "--" in words:
            words.remove("--")  # not needed; it separates nothing of qd's own
        forks = not FORKS.isdisjoint(words[:2])
        if forks and (alias := made.open_transaction()):
            fact = f"a transaction is open on Django's connection '{alias}': the worker cannot see its jobs"
            raise CommandError(f"{fact}; call it outside of atomic(), and in a test use TransactionTestCase")
        errors = Copied(options.get("stderr") or sys.stderr)
        try:
            if forks:  # a child that closes a shared connection ends it for this process
                close()
                made.connections.close_all()
            shown = options.get("stdout") or sys.stdout
            with (
                nullcontext() if forks else redirect_stdout(shown),
                nullcontext() if forks else redirect_stderr(errors),
            ):
                command(["--app", chosen(), *words], prog_name="qd")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            if code:
                why = "".join(f": {line}" for line in errors.getvalue().splitlines()[-1:])
                raise CommandError(f"qd {' '.join(words)} ended with {code}{why}", returncode=code) from None


class Copied(io.StringIO):
    """Keeps what is written to `file`."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self.file = file

    def write(self, text: str) -> int:
        self.file.write(text)
        return super().write(text)

    def flush(self) -> None:
        self.file.flush()

    def isatty(self) -> bool:
        return self.file.isatty()

    def fileno(self) -> int:
        return self.file.fileno()


def without(words: list[str], flags: tuple[str, ...] = DJANGOS) -> list[str]:
    """The arguments of qd: without Django's `--settings X` and `--settings=X`."""
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept
