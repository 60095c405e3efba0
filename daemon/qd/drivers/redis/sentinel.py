"""Which server is the primary now: the sentinels of a Redis or Valkey are asked for each new connection.

redis+sentinel://[user:password@]s1[:26379],s2,s3/SERVICE[/DB], rediss+sentinel:// with TLS to sentinels and servers.
user and password are the servers'. Options behind `?`: sentinel_username, sentinel_password, sentinel_ssl (true or false:
whether sentinels use TLS, where that differs from the servers), and those of target.

    a connection in use   one of them is asked again once a second: the old primary may live on
    one that answers      stays in front for the next time
    one that does not     goes behind the others, as does one whose primary is away or is none

The connections are redis-py's; its Sentinel client is not used: each question here has an end, and one that broke is not
repeated unseen, while that client retries and has no bound for the whole search.
"""

from __future__ import annotations

import re
import ssl
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import hiredis

from qd.drivers.redis.url import OPTIONS, RedisUrl, login_of, options_of, parted, reason, switch, tls_context, unreached
from qd.errors import ConfigError, ConnectionLost, NeedsMending, Unreachable, Unusable, WrongPassword

if TYPE_CHECKING:
    from qd.drivers.redis.client import Opened


KINDS = ("redis+sentinel", "rediss+sentinel")
WRITTEN = "redis+sentinel://host:26379,host:26379/SERVICE/DB"
OWN_OPTIONS = ("sentinel_username", "sentinel_password", "sentinel_ssl", *OPTIONS)
PORT = 26379
RESTS = 10.0
ASK = 0.5  # seconds one sentinel may take, where a connection may take as long or longer
NO_ENTRY = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH")
HOSTS = re.compile(r"([^/]*//(?:[^/?#]*@)?)([^/?#]*)(.*)", re.DOTALL)  # what is before them, they, what is behind
ADDRESS = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?")
Address = tuple[str, int]


def target_of(url: str) -> RedisUrl:
    """Raises ConfigError naming what is wrong in the url."""
    return Primary(url) if url.partition(":")[0] in KINDS else RedisUrl(url)


class Primary(RedisUrl):
    """The server that sentinels name. `sentinels`: the one to ask first comes first. Raises ConfigError."""

    must_be_primary = True

    def __init__(self, url: str) -> None:
        hosts, rest = without_hosts(url)
        parts = parted(rest, KINDS)
        query = options_of(parts, OWN_OPTIONS)
        self.login = login_of(parts, query)
        self.path = None
        self.service, _, db = unquote(parts.path).strip("/").partition("/")
        if not self.service:
            raise ConfigError(f"the url names no service that the sentinels know (written {WRITTEN})")
        try:
            self.db = int(query.get("db") or db or 0)
        except ValueError:
            raise ConfigError(f"'{db or query['db']}' is no number of a database (written {WRITTEN})") from None
        self.sentinels = [address_of(each) for each in hosts.split(",")]
        self._login = query.get("sentinel_username"), query.get("sentinel_password")
        is_tls = parts.scheme == KINDS[1]
        self.tls = tls_context(query) if is_tls else None
        self._sentinel_tls = (self.tls or tls_context(query)) if switch(query, "sentinel_ssl", is_tls) else None
        self.host, self.port = "", 0
        self._rests_until = 0.0

    @property
    def place(self) -> str:
        if self.host:
            return f"{self.host}:{self.port}/{self.db} (the primary of '{self.service}')"
        return f"'{self.service}' by the sentinels {', '.join([shown(each) for each in self.sentinels])}"

    def connection(self, timeout: float) -> Opened:
        """To the primary; whether it knows that it is one, `wire` asks. Raises OSError, ConnectionLost."""
        self.host, self.port = self.found(timeout)
        try:
            return super().connection(timeout)
        except OSError:
            self.doubted()
            raise

    def doubted(self) -> None:
        """Another sentinel may know better."""
        self.sentinels.append(self.sentinels.pop(0))

    def replaced(self, timeout: float) -> str:
        """By the word of one sentinel: an old primary that lives on takes writes, and loses them, until one tells it. One
        that does not answer says nothing, and another is asked, RESTS times as long later as this one was waited for."""
        began = time.monotonic()
        if began < self._rests_until:
            return ""
        try:
            address = self.told_by(self.sentinels[0], min(ASK, timeout / 2))
        except (OSError, hiredis.ProtocolError, ConnectionLost):
            self.doubted()
            over = time.monotonic()
            self._rests_until = over + RESTS * (over - began)
            return ""
        return "" if address == (self.host, self.port) else f"the sentinels name {shown(address)} now"

    def found(self, timeout: float) -> Address:
        """The first answer of a sentinel. Raises ConnectionLost: none knows, within `timeout` seconds."""
        until, said = time.monotonic() + timeout, list[ConnectionLost]()
        for _ in range(len(self.sentinels)):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                return self.told_by(self.sentinels[0], min(ASK, timeout / 2, left))
            except (OSError, hiredis.ProtocolError) as error:
                said.append(unreached(error)(f"sentinel {shown(self.sentinels[0])}: {reason(error)}"))
            except ConnectionLost as error:
                said.append(error)
            self.doubted()
        raise worst(said, self.service)

    def told_by(self, sentinel: Address, seconds: float) -> Address:
        """Where the primary is by the word of one of them. Raises OSError, ConnectionLost."""
        with Asking(sentinel, seconds, self._sentinel_tls) as asking:
            user, password = self._login
            if password is not None:
                asking.ask("AUTH", *([user] if user else []), password)
            found = asking.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
            if not isinstance(found, list):
                raise Unknown(self.service, shown(sentinel), names_in(asking.ask("SENTINEL", "MASTERS")))
            return found[0].decode(), int(found[1])


class Unknown(NeedsMending, Unreachable):
    """A sentinel knows no primary of this name."""

    def __init__(self, service: str, sentinel: str, names: list[str]) -> None:
        known = f"(known: {', '.join(names)})" if names else "(it knows none)"
        super().__init__(f"sentinel {sentinel} knows no primary called '{service}' {known}: mend the name in the url")


def worst(said: list[ConnectionLost], service: str) -> ConnectionLost:
    """What to say of all of them: what only a person can mend, where each that answered said so."""
    answered = [each for each in said if type(each) is not Unreachable]
    if answered:
        return answered[0]
    return Unreachable(f"no sentinel tells where the primary of '{service}' is: {'; '.join(map(str, said))}")


class Asking:
    """One short connection to a sentinel; each answer has what is left of its seconds."""

    def __init__(self, sentinel: Address, seconds: float, tls: ssl.SSLContext | None) -> None:
        self.sentinel, self._until = sentinel, time.monotonic() + seconds
        self._reader = hiredis.Reader()
        from qd.drivers.redis import client

        self._connection = client.tcp(*sentinel, seconds, tls)
        self._sock = self._connection._sock

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.disconnect()

    def ask(self, *words: str) -> Any:
        """Raises OSError, WrongPassword, and Unreachable for every other refusal."""
        command: Any = words
        self._sock.sendall(hiredis.pack_command(command))
        while (reply := self._reader.gets()) is False:
            self._sock.settimeout(max(0.001, self._until - time.monotonic()))
            came = self._sock.recv(65536)
            if not came:
                raise ConnectionError("it closed the connection")
            self._reader.feed(came)
        if isinstance(reply, hiredis.ReplyError):
            raise refused(str(reply), shown(self.sentinel))
        return reply


def refused(text: str, sentinel: str) -> ConnectionLost:
    if text.startswith(NO_ENTRY):
        way = "sentinel_username and sentinel_password in the url are for it"
        return WrongPassword(f"sentinel {sentinel} refuses this user or password ({way}): {text}")
    if text.startswith("ERR unknown command"):
        return Unusable(
            f"the server at {sentinel} is no sentinel: write redis:// into the url, or the sentinels' addresses"
        )
    return Unreachable(f"sentinel {sentinel}: {text}")


def names_in(masters: Any) -> list[str]:
    return sorted(each[each.index(b"name") + 1].decode() for each in masters)


def without_hosts(url: str) -> tuple[str, str]:
    """The hosts of a url, and the url without them: newer Pythons refuse a list in which one is `[::1]`."""
    match = HOSTS.fullmatch(url)
    return (match[2], match[1] + match[3]) if match else ("", url)


def address_of(text: str) -> Address:
    match = ADDRESS.fullmatch(text)
    port = int(match[2] or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"'{text}' is no host:port of a sentinel (written {WRITTEN})")
    return match[1].strip("[]"), port


def shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
