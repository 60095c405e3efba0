"""Finds the primary: each new connection queries the sentinels of a Redis or Valkey.

redis+sentinel://[user:password@]s1[:26379],s2,s3/SERVICE[/DB], or rediss+sentinel:// for TLS to sentinels and servers. user
and password are for the servers. Options: sentinel_username, sentinel_password, sentinel_ssl (true or false, if sentinels
differ from the servers), and those of url.py.

    while a connection is in use   one sentinel is queried once a second, because the old primary may still be alive
    a sentinel that answers        stays first in the list
    a sentinel that does not       goes to the end, as does one that names a server that is unreachable or not a primary

redis-py opens the connections. Its Sentinel client is not used: it retries, and has no limit for the whole search.
"""

from __future__ import annotations

import re
import ssl
import time
from contextlib import closing
from typing import Any
from urllib.parse import unquote

import hiredis

from qd.drivers.redis.url import OPTIONS, RedisUrl, host_port, login_of, parsed, reason, switch, tls_context, unreached
from qd.errors import ConfigError, ConnectionLost, Unreachable, Unusable, WrongPassword

KINDS = ("redis+sentinel", "rediss+sentinel")
WRITTEN = "redis+sentinel://host:26379,host:26379/SERVICE/DB"
OWN_OPTIONS = ("sentinel_username", "sentinel_password", "sentinel_ssl", *OPTIONS)
PORT = 26379
RESTS = 10.0  # pause after a failed query, in multiples of its duration
QUERY_TIME = 0.5  # seconds one sentinel may take, if a connection may take as long
NO_ENTRY = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH")
HOSTS = re.compile(r"([^/]*//(?:[^/?#]*@)?)([^/?#]*)(.*)", re.DOTALL)  # the text before the hosts, the hosts, the rest
ADDRESS = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?")
Address = tuple[str, int]


def target_of(url: str) -> RedisUrl:
    """Raises ConfigError."""
    return Primary(url) if url.partition(":")[0] in KINDS else RedisUrl(url)


class Primary(RedisUrl):
    """The server that the sentinels name. `sentinels`: in the order of queries. Raises ConfigError."""

    must_be_primary = True

    def __init__(self, url: str) -> None:
        match = HOSTS.fullmatch(url)  # newer Pythons refuse a list of hosts in which one is `[::1]`
        hosts, rest = (match[2], match[1] + match[3]) if match else ("", url)
        parts, query = parsed(rest, KINDS, OWN_OPTIONS)
        self.login = login_of(parts, query)
        self.path = None
        self.service, _, db = unquote(parts.path).strip("/").partition("/")
        if not self.service:
            raise ConfigError(f"the url names no service of the sentinels (written {WRITTEN})")
        try:
            self.db = int(query.get("db") or db or 0)
        except ValueError:
            raise ConfigError(f"'{db or query['db']}' is not a database number (written {WRITTEN})") from None
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

    def locate(self, timeout: float) -> None:
        """RedisConnection checks the role of the named server. Raises ConnectionLost."""
        self.host, self.port = self.find_primary(timeout)

    def distrust(self) -> None:
        """Query another sentinel next."""
        self.sentinels.append(self.sentinels.pop(0))

    def replaced(self, timeout: float) -> str:
        """Queries one sentinel: a replaced primary that is still alive accepts writes, and loses them, until a sentinel
        demotes it. If this sentinel fails, the next query goes to another one, after a pause of RESTS times the wait."""
        began = time.monotonic()
        if began < self._rests_until:
            return ""
        try:
            address = self.primary_by(self.sentinels[0], min(QUERY_TIME, timeout / 2))
        except (OSError, hiredis.ProtocolError, ConnectionLost):
            self.distrust()
            now = time.monotonic()
            self._rests_until = now + RESTS * (now - began)
            return ""
        return "" if address == (self.host, self.port) else f"the sentinels name {shown(address)} now"

    def find_primary(self, timeout: float) -> Address:
        """The first answer of a sentinel within `timeout` seconds. Raises ConnectionLost if there is none."""
        until, errors = time.monotonic() + timeout, list[ConnectionLost]()
        for _ in range(len(self.sentinels)):
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                return self.primary_by(self.sentinels[0], min(QUERY_TIME, timeout / 2, left))
            except (OSError, hiredis.ProtocolError) as error:
                errors.append(unreached(error)(f"sentinel {shown(self.sentinels[0])}: {reason(error)}"))
            except ConnectionLost as error:
                errors.append(error)
            self.distrust()
        for each in errors:  # an error that an operator must fix comes before one of an unreachable sentinel
            if type(each) is not Unreachable:
                raise each
        raise Unreachable(f"no sentinel names the primary of '{self.service}': {'; '.join(map(str, errors))}")

    def primary_by(self, sentinel: Address, seconds: float) -> Address:
        """The primary's address according to one sentinel. Raises OSError, ConnectionLost."""
        with closing(SentinelQuery(sentinel, seconds, self._sentinel_tls)) as query:
            user, password = self._login
            if password is not None:
                query.call("AUTH", *([user] if user else []), password)
            found = query.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
            if not isinstance(found, list):
                masters = query.call("SENTINEL", "MASTERS")
                names = sorted(each[each.index(b"name") + 1].decode() for each in masters)
                known = f"known: {', '.join(names)}" if names else "it knows none"
                why = f"sentinel {shown(sentinel)} knows no primary called '{self.service}' ({known})"
                raise Unusable(f"{why}: correct the name in the url")
            return found[0].decode(), int(found[1])


class SentinelQuery:
    """One short connection to a sentinel. `seconds` is the time for connecting and all replies."""

    def __init__(self, sentinel: Address, seconds: float, tls: ssl.SSLContext | None) -> None:
        from qd.drivers.redis import client

        self.sentinel, self._until = sentinel, time.monotonic() + seconds
        connection = client.opened(seconds, host=sentinel[0], port=sentinel[1], tls=tls)
        self._sock, self.close = connection._sock, connection.disconnect
        self._reader = hiredis.Reader()

    def call(self, *words: str) -> Any:
        """Raises OSError, WrongPassword, Unusable, and Unreachable for any other error reply."""
        command: Any = words
        self._sock.sendall(hiredis.pack_command(command))
        while (reply := self._reader.gets()) is False:
            self._sock.settimeout(max(0.001, self._until - time.monotonic()))
            received = self._sock.recv(65536)
            if not received:
                raise ConnectionError("it closed the connection")
            self._reader.feed(received)
        if isinstance(reply, hiredis.ReplyError):
            raise error_of(str(reply), shown(self.sentinel))
        return reply


def error_of(text: str, sentinel: str) -> ConnectionLost:
    if text.startswith(NO_ENTRY):
        hint = "set sentinel_username and sentinel_password in the url"
        return WrongPassword(f"sentinel {sentinel} refuses this user or password ({hint}): {text}")
    if text.startswith("ERR unknown command"):
        hint = "write redis:// in the url, or the sentinels' addresses"
        return Unusable(f"the server at {sentinel} is not a sentinel: {hint}")
    return Unreachable(f"sentinel {sentinel}: {text}")


def address_of(text: str) -> Address:
    match = ADDRESS.fullmatch(text)
    port = int(match[2] or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"'{text}' is not the host:port of a sentinel (written {WRITTEN})")
    return match[1].strip("[]"), port


def shown(address: Address) -> str:
    return host_port(*address)
