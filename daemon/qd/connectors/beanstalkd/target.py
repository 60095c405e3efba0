"""The url of a beanstalkd, taken apart: beanstalkd://host[:port][?priority=N]."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from qd.errors import ConfigError
from qd.units import did_you_mean

PORT, PRIORITY = 11300, 1024  # as Laravel puts
OPTIONS = ("priority",)
NAME = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}", re.ASCII)  # protocol.txt, "Tube names"


class Target:
    """Raises ConfigError naming what is wrong in it. priority: of what is put, 0 is the most urgent."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "", parts.port or PORT
        except ValueError as error:
            raise ConfigError(f"a beanstalkd url needs a host and a number as port ({error})") from None
        if not self.host or parts.path.strip("/") or "@" in parts.netloc:
            raise ConfigError("a beanstalkd url is written beanstalkd://host:11300, without user, password and path")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in OPTIONS:
                raise ConfigError(
                    f"unknown option '{name}' in a beanstalkd url{did_you_mean(name, OPTIONS)} (known: priority)"
                )
        word = options.get("priority", str(PRIORITY))
        if not (word.isascii() and word.isdigit() and int(word) < 2**32):
            raise ConfigError(f"priority={word} in a beanstalkd url is not a number from 0 to {2**32 - 1}")
        self.priority = int(word)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


def refused_name(queue: str) -> str:
    """Why no tube can be called so, "" where one can."""
    if NAME.fullmatch(queue):
        return ""
    return f"'{queue}' cannot be a tube of beanstalkd: 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), and no '-' first"
