"""What is set and means nothing here: a typing error, most likely. For `qd config check`."""

from __future__ import annotations

from collections.abc import Mapping

from qd import units
from qd.config import table
from qd.config.settings import Settings
from qd.options import WORK
from qd.options.drivers import DRIVERS

OTHERS = {"QD_CONFIG", "QD_ENV_FILE", "QD_POOL", "QD_OWNER"}


def strangers(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """One line for each QD_ variable that nothing here reads: a typing error, most likely."""
    rows = (table.QD, WORK, table.LARAVEL, table.FAILED, table.SIGNING, table.SCHEDULE)
    fixed = [option for each in rows for option in each.values()]
    known = {table.environ_name(option) for option in fixed if option.environ} | OTHERS
    known |= {table.environ_name(option, name) for option in table.CONNECTION.values() for name in settings.connections}
    return [
        f"{name} in the environment is read by nothing{units.did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith("QD_") and name not in known
    ]


def strange_drivers(settings: Settings) -> list[str]:
    """One line for each driver that is none of ours: only the app knows whether it is one of its own."""
    known = ", ".join(DRIVERS)
    return [
        f"driver '{found.driver}' of connection '{found.name}' is none of qd's (known: {known})"
        f"{units.did_you_mean(found.driver, DRIVERS)}: only the app knows whether it is one of its own (app.extend)"
        for found in settings.connections.values()
        if found.driver not in DRIVERS
    ]
