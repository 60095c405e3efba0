"""The url of a connection to SQS, taken apart, and the names that its queues have there.

sqs://REGION[/ACCOUNT][?endpoint=http://host:port&suffix=-staging&longest_delay=900&shared=false]
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from qd.errors import ConfigError
from qd.units import did_you_mean

OPTIONS = ("endpoint", "suffix", "longest_delay", "shared")
FIFO = ".fifo"
LONGEST = 900  # seconds that SQS delays a message at most
_REGION = re.compile(r"[a-z0-9-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_ACCOUNT = re.compile(r"\d{12}")


class Address:
    """account: whose queues they are, "" for the credentials' own. longest_delay: seconds for which a message is left to
    SQS's own delay; longer ones wait on the control connection first. shared: other programs work on the queues, too, and
    what they have received counts as attempts. Raises ConfigError naming what is wrong."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            self.region = parts.hostname or ""
        except ValueError as error:
            raise ConfigError(f"not a url of SQS ({error})") from None
        if parts.scheme != "sqs" or not _REGION.fullmatch(self.region):
            raise ConfigError("a url of SQS names a region: sqs://eu-west-1, or sqs://eu-west-1/ACCOUNT")
        if parts.username or parts.password:
            raise ConfigError(
                "a url of SQS holds no key: credentials come from the environment, ~/.aws or the machine's role"
            )
        for option in query:
            if option not in OPTIONS:
                near = did_you_mean(option, OPTIONS)
                raise ConfigError(f"unknown option '{option}' in a url of SQS (known: {', '.join(OPTIONS)}){near}")
        self.account = parts.path.strip("/")
        if self.account and not _ACCOUNT.fullmatch(self.account):
            raise ConfigError(f"'{self.account}' in a url of SQS is no account: twelve digits, or nothing")
        self.endpoint = self._endpoint(query.get("endpoint", ""))
        self.suffix = query.get("suffix", "")
        self.shared = self._switch("shared", query.get("shared", "false"))
        self.longest_delay = self._delay(query.get("longest_delay", str(LONGEST)))

    def _endpoint(self, given: str) -> str | None:
        if given and not re.match(r"https?://[^/]", given):
            raise ConfigError(f"endpoint={given} in a url of SQS is none (written http://127.0.0.1:9324)")
        return given.rstrip("/") or None

    def _delay(self, given: str) -> int:
        if not re.fullmatch(r"\d{1,3}", given) or int(given) > LONGEST:
            raise ConfigError(f"longest_delay={given} in a url of SQS is no number of seconds from 0 to {LONGEST}")
        return int(given)

    def _switch(self, name: str, given: str) -> bool:
        if given not in ("true", "false"):
            raise ConfigError(f"{name}={given} in a url of SQS is neither true nor false")
        return given == "true"

    @property
    def place(self) -> str:
        return urlsplit(self.endpoint).netloc if self.endpoint else f"sqs.{self.region}.amazonaws.com"

    def name(self, queue: str, prefix: str = "") -> str:
        """What `queue` is called there: the suffix stands before `.fifo`, once (Laravel 8, SqsQueue.php, suffixQueue)."""
        bare, fifo = (queue[: -len(FIFO)], FIFO) if is_fifo(queue) else (queue, "")
        suffix = "" if bare.endswith(self.suffix) else self.suffix
        return f"{prefix}{bare}{suffix}{fifo}"


def is_name(name: str) -> bool:
    """Whether SQS can have a queue of that name."""
    return bool(_NAME.fullmatch(name)) and len(name) <= 80


def is_fifo(queue: str) -> bool:
    return queue.endswith(FIFO)
