"""The url of a database, looked at before anything connects. No library is needed for that.

The url of a beanstalkd, taken apart: beanstalkd://host[:port][?priority=N].

The url of a connection to SQS, taken apart, and the names that its queues have there.

sqs://REGION[/ACCOUNT][?endpoint=http://host:port&suffix=-staging&longest_delay=900&shared=false]
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlsplit

from qd.errors import ConfigError
from qd.options.kinds import did_you_mean

_HOSTS = re.compile(
    r"(?P<head>postgres(?:ql)?(?:\+\w+)?://(?:[^?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?=[/?#]|$)(?P<path>[^?#]*)\??"
)
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")


def with_hosts_as_options(url: str) -> str:
    """A PostgreSQL url with several hosts, as libpq takes it, in the form that SQLAlchemy takes: `?host=a,b&port=1,2`. Every
    other url is returned as it is. Raises ConfigError."""
    found = _HOSTS.match(url)
    if found is None:
        return url
    places = [_HOST.fullmatch(each) for each in found["hosts"].split(",")]
    if not all(places):
        raise ConfigError("the url of a database needs a number as port of each host (written HOST:5432,HOST:5432)")
    hosts = ",".join((each["v6"] or each["name"] or "") for each in places if each)
    ports = ",".join(each["port"] or "" for each in places if each)
    more = url[found.end() :]
    return f"{found['head']}{found['path']}?host={hosts}&port={ports}" + (f"&{more}" if more else "")


def check(url: str) -> None:
    """Raises ConfigError naming what is wrong in it."""
    try:
        parts = urlsplit(with_hosts_as_options(url))
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"the url of a database needs a number as port ({error})") from None
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        check_file(parts)
    elif kind in ("mysql", "mariadb") and not parts.path.strip("/"):
        raise ConfigError(f"the url names no database (written {kind}://user:password@host/NAME)")


def check_file(parts: SplitResult) -> None:
    path = parts.path.removeprefix("/")
    if not path or path == ":memory:":
        raise ConfigError("what SQLite has in memory is its connection's alone: name a file, sqlite:///qd.sqlite")
    if parts.query:
        raise ConfigError(f"unknown option '{parts.query.partition('=')[0]}' in a url of SQLite (it has none)")
    if not (folder := Path(path).parent).is_dir():
        raise ConfigError(f"the folder {folder} of this file of SQLite is not there")


PORT, PRIORITY = 11300, 1024  # as Laravel puts
OPTIONS = ("priority",)
NAME = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}", re.ASCII)  # protocol.txt, "Tube names"


class BeanstalkdUrl:
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


SQS_OPTIONS = ("endpoint", "suffix", "longest_delay", "shared")
FIFO = ".fifo"
LONGEST = 900  # seconds that SQS delays a message at most
_REGION = re.compile(r"[a-z0-9-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_ACCOUNT = re.compile(r"\d{12}")


class SqsUrl:
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
            if option not in SQS_OPTIONS:
                near = did_you_mean(option, SQS_OPTIONS)
                raise ConfigError(f"unknown option '{option}' in a url of SQS (known: {', '.join(SQS_OPTIONS)}){near}")
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
