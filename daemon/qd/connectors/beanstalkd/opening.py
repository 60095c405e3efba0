"""How the manager opens a connection to beanstalkd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd.connectors.beanstalkd.backend import Beanstalkd
from qd.connectors.borrowed.keeping import BorrowedKeeping
from qd.connectors.borrowed.opening import open_borrowed
from qd.connectors.reserver import Reserver
from qd.errors import ConfigError

if TYPE_CHECKING:
    from qd.config import ConnectionSettings, Settings


def open_queue(settings: Settings, at: ConnectionSettings, who: Reserver) -> BorrowedKeeping:
    try:
        backend = Beanstalkd(at.url or "", at.retry_after)
    except ConfigError as error:
        raise ConfigError(f"url of connection '{at.name}' ({at.url_origin}): {error}") from None
    return open_borrowed(settings, at, who, backend)
