"""URLs of database, beanstalkd and SQS, parsed and checked without connecting and without any library of the driver.

postgresql://..., mysql://..., mariadb://..., sqlite:///FILE      see check
beanstalkd://host[:port][?priority=N]                             BeanstalkdUrl
sqs://REGION[/ACCOUNT][?endpoint=http://host:port&suffix=-staging&longest_delay=900&shared=false]     SqsUrl
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from qd.errors import ConfigError
from qd.options.kinds import did_you_mean


def options_of(parts: SplitResult, known: Sequence[str], what: str) -> dict[str, str]:
    """The options of a url. what: "a Redis url", for the error. Raises ConfigError for an unknown one."""
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name in options:
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError(f"unknown option '{name}' in {what} (known: {', '.join(known)}){near}")
    return options


_HOSTS = re.compile(
    r"(?P<head>postgres(?:ql)?(?:\+\w+)?://(?:[^?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?=[/?#]|$)(?P<path>[^?#]*)\??"
)
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")


def with_hosts_as_options(url: str) -> str:
    """Convert a PostgreSQL url with several hosts from libpq's form to SQLAlchemy's: `?host=a,b&port=1,2`. Returns any other
    url unchanged. Raises ConfigError."""
    found = _HOSTS.match(url)
    if found is None:
        return url
    places = [match for each in found["hosts"].split(",") if (match := _HOST.fullmatch(each))]
    if len(places) <= found["hosts"].count(","):
        raise ConfigError("the url of a database needs a number as port of each host (written HOST:5432,HOST:5432)")
    hosts = ",".join(each["v6"] or each["name"] or "" for each in places)
    ports = ",".join(each["port"] or "" for each in places)
    more = url[found.end() :]
    return f"{found['head']}{found['path']}?host={hosts}&port={ports}" + (f"&{more}" if more else "")


def check(url: str) -> None:
    """Check the url of a database. Raises ConfigError."""
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
    if parts.netloc:
        way = f"write three slashes, sqlite:///{parts.netloc}{parts.path}"
        raise ConfigError(f"a SQLite url names a file and no host: {way}")
    path = parts.path.removeprefix("/")
    if not path or path == ":memory:":
        raise ConfigError("an in-memory SQLite database is private to one connection: name a file, sqlite:///qd.sqlite")
    if parts.query:
        raise ConfigError(f"unknown option '{parts.query.partition('=')[0]}' in a SQLite url (it has no options)")
    if not (folder := Path(path).parent).is_dir():
        raise ConfigError(f"the folder {folder} of this SQLite file does not exist")


PORT, PRIORITY = 11300, 1024  # Laravel's defaults
OPTIONS = ("priority",)
NAME = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}", re.ASCII)  # protocol.txt, "Tube names"


class BeanstalkdUrl:
    """Raises ConfigError. priority: of jobs that are sent, 0 is the most urgent."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "", parts.port or PORT
        except ValueError as error:
            raise ConfigError(f"a beanstalkd url needs a host and a number as port ({error})") from None
        if not self.host or parts.path.strip("/") or "@" in parts.netloc:
            raise ConfigError("a beanstalkd url is written beanstalkd://host:11300, without user, password and path")
        word = options_of(parts, OPTIONS, "a beanstalkd url").get("priority", str(PRIORITY))
        if not (word.isascii() and word.isdigit() and int(word) < 2**32):
            raise ConfigError(f"priority={word} in a beanstalkd url is not a number from 0 to {2**32 - 1}")
        self.priority = int(word)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


def refused_name(queue: str) -> str:
    """Why this name is not valid for a tube; "" if it is."""
    if NAME.fullmatch(queue):
        return ""
    return f"'{queue}' cannot be a tube of beanstalkd: 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), and no '-' first"


SQS_OPTIONS = ("endpoint", "suffix", "longest_delay", "shared")
FIFO = ".fifo"
LONGEST = 900  # seconds, SQS's maximum delay of a message
_REGION = re.compile(r"[a-z0-9-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_ACCOUNT = re.compile(r"\d{12}")


class SqsUrl:
    """account: owner of the queues, "" for the account of the credentials. longest_delay: seconds up to which SQS itself
    delays a message; longer delays wait on the control connection first. shared: other programs also consume the queues, and
    their receives count as attempts. Raises ConfigError."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self.region = parts.hostname or ""
        except ValueError as error:
            raise ConfigError(f"not an SQS url ({error})") from None
        if parts.scheme != "sqs" or not _REGION.fullmatch(self.region):
            raise ConfigError("an SQS url names a region: sqs://eu-west-1, or sqs://eu-west-1/ACCOUNT")
        if parts.username or parts.password:
            way = "credentials come from the environment, ~/.aws or the machine's role"
            raise ConfigError(f"an SQS url holds no key: {way}")
        query = options_of(parts, SQS_OPTIONS, "an SQS url")
        self.account = parts.path.strip("/")
        if self.account and not _ACCOUNT.fullmatch(self.account):
            raise ConfigError(f"'{self.account}' in an SQS url is not an account: write twelve digits, or nothing")
        endpoint, self.suffix = query.get("endpoint", ""), query.get("suffix", "")
        if endpoint and not re.match(r"https?://[^/]", endpoint):
            raise ConfigError(f"endpoint={endpoint} in an SQS url is not a url (written http://127.0.0.1:9324)")
        self.endpoint = endpoint.rstrip("/") or None
        shared, delay = query.get("shared", "false"), query.get("longest_delay", str(LONGEST))
        if shared not in ("true", "false"):
            raise ConfigError(f"shared={shared} in an SQS url is neither true nor false")
        self.shared = shared == "true"
        if not re.fullmatch(r"\d{1,3}", delay) or int(delay) > LONGEST:
            raise ConfigError(f"longest_delay={delay} in an SQS url is not a number of seconds from 0 to {LONGEST}")
        self.longest_delay = int(delay)

    @property
    def place(self) -> str:
        return urlsplit(self.endpoint).netloc if self.endpoint else f"sqs.{self.region}.amazonaws.com"

    def name(self, queue: str, prefix: str = "") -> str:
        """The SQS name of `queue`: the suffix comes before `.fifo`, once (Laravel 8, SqsQueue.php, suffixQueue)."""
        bare, fifo = (queue[: -len(FIFO)], FIFO) if is_fifo(queue) else (queue, "")
        suffix = "" if bare.endswith(self.suffix) else self.suffix
        return f"{prefix}{bare}{suffix}{fifo}"


def is_name(name: str) -> bool:
    """Whether the name is valid for an SQS queue."""
    return bool(_NAME.fullmatch(name)) and len(name) <= 80


def is_fifo(queue: str) -> bool:
    return queue.endswith(FIFO)
