"""`manage.py qd work`, `manage.py qd status`, ...: passes all arguments to `qd`, which sets the exit code."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from qd.contrib.command import become_qd
from qd.contrib.django.project import chosen, close, made
from qd.errors import ConfigError
from qd.process.exit_codes import Exit

DJANGOS = ("--settings", "--pythonpath")  # already handled by manage.py


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
        """From call_command("qd", "dispatch", ...): in this process. Raises CommandError with qd's exit code."""
        from qd.cli.main import command

        words = list(map(str, args or options.get("words", ())))
        if "--" in words:
            words.remove("--")  # not needed; it separates nothing of qd's own
        try:
            if "work" in words[:2]:  # it forks, and a child that closes a shared connection ends it for this process
                close()
                made.connections.close_all()
            command(["--app", chosen(), *words], prog_name="qd")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            if code:
                raise CommandError(f"qd {' '.join(words)} ended with {code}", returncode=code) from None


def without(words: list[str], flags: tuple[str, ...] = DJANGOS) -> list[str]:
    """The arguments of qd: without Django's `--settings X` and `--settings=X`."""
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word in flags:
            next(rest, None)
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return kept
