"""The parsed URL of a Redis or Valkey server, or of a cluster.

redis://[user:password@]host[:port][/db], rediss://..., unix://[user:password@]/path?db=N. The options are db, credentials
(MODULE:ATTRIBUTE, see credentials.py), and those of redis-py's ssl_ options that TLS_OPTIONS lists.

redis+cluster://[user:password@]host[:port],host[:port]..., rediss+cluster://...: Seeds, some servers of the cluster.

sentinel.py parses redis+sentinel://. Parsing a URL does not load redis-py; redis-py's parse_url would also ignore unknown
options.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from qd.drivers.redis import credentials
from qd.drivers.urls import options_of
from qd.errors import ConfigError, Unreachable, Unusable

FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
TLS_OPTIONS = (*FILES, "ssl_cert_reqs", "ssl_check_hostname", "ssl_password", "ssl_min_version", "ssl_ciphers")
OPTIONS = ("db", "credentials", *TLS_OPTIONS)
KINDS = ("redis", "rediss", "unix")
PORT = 6379
SWITCH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class RedisUrl:
    """Raises ConfigError."""

    must_be_primary = False  # True: a server with another ROLE is refused

    def __init__(self, url: str) -> None:
        parts, query = parsed(url, KINDS, OPTIONS)
        self.login = login_of(parts, query)
        self.path = unquote(parts.path) if parts.scheme == "unix" else None
        if self.path == "":
            raise ConfigError("a unix:// url names the server's socket: unix:///run/redis/redis.sock")
        try:
            self.host, self.port = parts.hostname or "localhost", parts.port or PORT
            self.db = int(query.get("db") or ("" if self.path else parts.path.strip("/")) or 0)
        except ValueError as error:
            raise ConfigError(f"a Redis url needs a number as port and as database ({error})") from None
        self.tls = tls_context(query) if parts.scheme == "rediss" else None

    @property
    def place(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}/{self.db}"

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of client.opened()."""
        return {"host": self.host, "port": self.port, "path": self.path, "tls": self.tls}

    def locate(self, timeout: float) -> None:
        """Set host and port. Primary overrides it."""

    def distrust(self) -> None:
        """Called when the server cannot be used. Primary overrides it."""

    def replaced(self, timeout: float) -> str:
        """Why another server must be used now; "" if none. Primary overrides it."""
        return ""


def parsed(url: str, kinds: Sequence[str], known: Sequence[str]) -> tuple[SplitResult, dict[str, str]]:
    """The parts and the options of a url. known: option names. Raises ConfigError."""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # half of an IPv6 address
        raise ConfigError(f"not a Redis url ({error})") from None
    if parts.scheme not in kinds:
        raise ConfigError(f"unknown kind of url '{parts.scheme}:' (known: redis://, rediss://, unix://, embedded:)")
    return parts, options_of(parts, known, "a Redis url")


def login_of(parts: SplitResult, query: Mapping[str, str]) -> credentials.Login:
    """Raises ConfigError if the url has both a password and a credential provider."""
    named = query.get("credentials", "")
    if named and (parts.username or parts.password):
        raise ConfigError(f"the url has a user or a password, and '{named}' provides both: remove one of them")
    user, password = parts.username, parts.password
    return credentials.Login(unquote(user) if user else None, unquote(password) if password else None, named)


def switch(query: Mapping[str, str], option: str, default: bool) -> bool:
    word = query.get(option, str(default)).lower()
    if word not in SWITCH:
        raise ConfigError(f"{option}={word} in a Redis url is neither true nor false")
    return SWITCH[word]


def tls_context(query: Mapping[str, str]) -> ssl.SSLContext:
    """Raises ConfigError: an invalid option, or a file that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=query.get("ssl_ca_certs"), capath=query.get("ssl_ca_path"))
        if query.get("ssl_certfile"):
            password = query.get("ssl_password", "")  # never None: OpenSSL would prompt on the terminal
            context.load_cert_chain(query["ssl_certfile"], query.get("ssl_keyfile"), password)
    except OSError as error:  # an SSLError is one
        named = ", ".join(f"{key}={query[key]}" for key in FILES if key in query)
        raise ConfigError(f"the certificates of a Redis url cannot be read ({named}): {reason(error)}") from None
    try:
        if version := query.get("ssl_min_version"):
            context.minimum_version = ssl.TLSVersion(int(version))
        if ciphers := query.get("ssl_ciphers"):
            context.set_ciphers(ciphers)
    except (ValueError, ssl.SSLError) as error:
        options = "ssl_min_version or ssl_ciphers"
        raise ConfigError(f"this system does not support {options} of a Redis url: {error}") from None
    checks = query.get("ssl_cert_reqs", "required")
    if checks not in ("required", "none"):
        raise ConfigError(f"ssl_cert_reqs={checks} in a Redis url is neither required nor none")
    context.check_hostname = checks == "required" and switch(query, "ssl_check_hostname", True)
    if checks == "none":
        context.verify_mode = ssl.CERT_NONE
    return context


def host_port(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unreached(why: Exception) -> type[Unreachable]:
    """Unusable for a refused certificate, which an operator must fix; any other failure may be temporary."""
    return Unusable if isinstance(why, ssl.SSLCertVerificationError) else Unreachable


UNSURE = "; a change may have taken effect"  # ends the message of a NoAnswer


def reason(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "no answer to TLS in time: does this port use TLS?" if "handshake" in str(why) else "no answer in time"
    if isinstance(why, ssl.SSLCertVerificationError):
        hint = "set ssl_ca_certs to its authority, the url to its host"
        return f"its certificate is refused: {why.verify_message} ({hint})"
    if isinstance(why, ssl.SSLError) and (isinstance(why, ssl.SSLEOFError) or "CERTIFICATE_REQUIRED" in str(why)):
        return "it ended TLS: if it requires a client certificate, set ssl_certfile and ssl_keyfile"
    return (getattr(why, "strerror", None) or str(why) or type(why).__name__).lower()


SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}


class Seeds(NamedTuple):
    """A parsed redis+cluster:// url. places: some of the servers, `host:port`."""

    places: tuple[str, ...]
    before: str  # scheme, user and password of a server's url
    behind: str  # its options

    def url(self, place: str) -> str:
        return f"{self.before}{place}{self.behind}"


def seeds_of(url: str) -> Seeds:
    """Raises ConfigError."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown kind of url '{scheme}:' of a cluster (known: {', '.join(SCHEMES)})")
    netloc, query, options = rest.partition("?")
    netloc, _, path = netloc.partition("/")
    if path.strip("/") not in ("", "0"):
        raise ConfigError(f"a cluster has database 0 only: remove /{path} from the url")
    user, at, hosts = netloc.rpartition("@")
    places = tuple(with_port(part.strip()) for part in hosts.split(",") if part.strip())
    if not places:
        raise ConfigError("the url of a cluster names no server (written redis+cluster://host:6379,host:6379)")
    found = Seeds(places, f"{SCHEMES[scheme]}://{user}{at}", f"{query}{options}")
    for place in places:
        if RedisUrl(found.url(place)).db:
            raise ConfigError("a cluster has database 0 only: remove db= from the url")
    return found


def with_port(place: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        return place if parts.port else f"{place.rstrip(':')}:{PORT}"
    except ValueError as error:
        raise ConfigError(f"'{place}' in the url of a cluster is not host:port ({error})") from None
