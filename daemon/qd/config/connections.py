"""Which connections are configured, and which of them is the default one and the control connection. See load.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qd.config import table
from qd.config.layers import Layers
from qd.config.settings import ConnectionSettings, check_connection, provider_of, sent_to, with_provider
from qd.errors import ConfigError
from qd.options.drivers import DRIVERS, SCHEMES, scheme_of


class Configured(NamedTuple):
    """default, control: their names."""

    connections: dict[str, ConnectionSettings]
    default: str
    control: str


def configured(layers: Layers) -> Configured:
    """Raises ConfigError. A url that is missing is none before it is asked for."""
    names = list(layers.section("connections")) or [unnamed(layers)]
    default = connection_name(layers, "default", names, only(names))
    connections = {name: connection_of(layers, name, name == default) for name in names}
    check_parts(layers, connections)
    return Configured(connections, default, connection_name(layers, "control", names, sent_to(default, connections)[0]))


def unnamed(layers: Layers) -> str:
    """The one connection where no file names any: called as the driver is that the url in Qd(url) asks for."""
    url = layers.code.get("url")
    return SCHEMES.get(scheme_of(url), "redis") if isinstance(url, str) else "redis"


def only(names: list[str]) -> str:
    return "redis" if "redis" in names else names[0] if len(names) == 1 else ""


def connection_name(layers: Layers, key: str, names: list[str], built_in: str) -> str:
    name: str = layers.value(f"qd.{key}", table.QD[key], built_in=built_in)
    if not name:
        raise ConfigError(f'no default connection among {", ".join(names)}: write default = "{names[0]}" below [qd]')
    check_connection(name, names, f" as {key} ({layers.origins[f'qd.{key}']})")
    return name


def connection_of(layers: Layers, name: str, default: bool) -> ConnectionSettings:
    section = f"connections.{name}"
    held = {
        key: layers.value(f"{section}.{key}", option, "url" if default and key == "url" else "", name)
        for key, option in table.CONNECTION.items()
    }
    held["driver"] = driver_of(layers, section, held["driver"], held["url"])
    held["url"] = held["url"] and from_root(held["url"], layers.root)
    if held["credentials"] and held["url"]:
        check_credentials(layers.origins[f"{section}.credentials"], held["driver"], held["url"])
        held["url"] = with_provider(held["url"], held["credentials"])
    return ConnectionSettings(name=name, **held, url_origin=layers.origins[f"{section}.url"])


def check_credentials(where: str, driver: str, url: str) -> None:
    """Raises ConfigError: such a url has no place for them."""
    if driver != "redis" or scheme_of(url) == "embedded":
        raise ConfigError(f"{where}: credentials are for a Redis url (redis://, rediss://, unix:// and their kinds)")
    if other := provider_of(url):
        raise ConfigError(f"{where}: the url has a credential provider, too: '{other}'; remove one of them")


def driver_of(layers: Layers, section: str, said: str, url: str | None) -> str:
    """That of the url, unless one is said; both must mean the same."""
    by_url = SCHEMES[scheme_of(url)] if url else ""
    if said in DRIVERS and by_url and said != by_url:
        where = layers.origins[f"{section}.driver"]
        kinds = ", ".join(scheme for scheme, driver in SCHEMES.items() if driver == said) or "no url"
        raise ConfigError(
            f"{where}: driver '{said}' does not fit a url of kind '{scheme_of(url or '')}:' (it takes {kinds})"
        )
    return said or by_url or "redis"


def check_parts(layers: Layers, connections: Mapping[str, ConnectionSettings]) -> None:
    """What connections of failover are made of: there, and not of themselves."""
    mixed = {name: found for name, found in connections.items() if found.driver == "failover"}
    for name, found in mixed.items():
        where = layers.origins[f"connections.{name}.connections"]
        if not found.connections:
            raise ConfigError(
                f"connection '{name}' (failover) has no connections: write connections = [\"redis\", ...]"
            )
        for part in found.connections:
            check_connection(part, connections, f" in connections of '{name}' ({where})")
    for name in mixed:
        if name in parts_of(name, mixed):
            where = layers.origins[f"connections.{name}.connections"]
            raise ConfigError(f"{where}: connection '{name}' (failover) goes round in a circle: it is a part of itself")


def parts_of(name: str, mixed: Mapping[str, ConnectionSettings]) -> set[str]:
    """All that a connection of failover is made of, the parts of its parts too."""
    found, ahead = set[str](), [name]
    while ahead:
        for part in mixed[ahead.pop()].connections:
            if part not in found and part in mixed:
                ahead.append(part)
            found.add(part)
    return found


def from_root(url: str, root: Path) -> str:
    """The same; a file of SQLite that is named without a folder stands in that of qd.toml, wherever a program starts."""
    kind, slashes, path = url.partition(":///")
    if scheme_of(url) != "sqlite" or not path or path.startswith(("/", ":memory:")):
        return url
    return f"{kind}{slashes}{root.resolve() / path}"
