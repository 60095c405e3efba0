"""Notifies systemd: READY, RELOADING, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT (sd_notify(3)).

Only the master uses it (the shipped unit has NotifyAccess=main). Without NOTIFY_SOCKET no call has an effect.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
STATES = ("READY", "RELOADING", "STOPPING")
LONGEST_STATUS = 500


class Notifier:
    """Sends one datagram per call; never raises, never blocks.

    If a datagram cannot be sent (the receiver's queue is full), the newest value of each name goes out with the next call.
    Each call opens its own socket, so a fork inherits none and nothing has to be closed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._unsent: dict[str, str] = {}
        self.watchdog_interval: float | None = _watchdog_interval(environ)
        """Seconds between two calls of `watchdog()`: half of what systemd allows. None: systemd does not watch."""

    def ready(self, status: str = "") -> bool:
        """The first round of workers has booted, or a reload has ended."""
        return self._send({"READY": "1", **_status(status)})

    def reloading(self) -> bool:
        """A reload began; `ready()` ends it."""
        # Type=notify-reload (systemd 253) requires the moment; older versions ignore it.
        moment = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        return self._send({"RELOADING": "1", "MONOTONIC_USEC": moment})

    def stopping(self) -> bool:
        return self._send({"STOPPING": "1"})

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send(_status(text))

    def watchdog(self) -> bool:
        """Report that this process works; call it every `watchdog_interval` seconds."""
        return self._send({"WATCHDOG": "1"})

    def extend(self, seconds: float) -> bool:
        """Ask systemd not to abort the current start or stop within the next `seconds`."""
        return self._send({"EXTEND_TIMEOUT_USEC": str(int(seconds * 1_000_000))})

    def _send(self, news: dict[str, str]) -> bool:
        """True: sent to systemd. False: systemd does not listen, or it goes out with the next call."""
        if self._address is None or not news:
            return False
        if any(name in STATES for name in news):  # an older unsent state must not arrive after this one
            for name in STATES:
                self._unsent.pop(name, None)
        self._unsent.update(news)
        message = "\n".join(f"{name}={value}" for name, value in self._unsent.items()).encode("utf-8", "replace")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message, self._address)
        except (OSError, ValueError):
            return False
        self._unsent.clear()
        return True


def strip(environ: MutableMapping[str, str]) -> None:
    """Remove the variables, so that no child notifies for the service."""
    for name in VARIABLES:
        environ.pop(name, None)


def _address(value: str) -> str | None:
    """A path, or an abstract name written with a leading `@`. None: an address of another kind (vsock:...)."""
    if value.startswith("@") and len(value) > 1:
        return "\0" + value[1:]
    return value if value.startswith("/") else None


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    # WATCHDOG_PID is the process that systemd watches; a child may have inherited the variables.
    try:
        usec = int(environ.get("WATCHDOG_USEC", ""))
        pid = int(environ.get("WATCHDOG_PID", "") or os.getpid())
    except ValueError:
        return None
    return usec / 2_000_000 if usec > 0 and pid == os.getpid() else None


def _status(text: str) -> dict[str, str]:
    line = " ".join(text.split())  # a line break would begin another variable
    return {"STATUS": line[:LONGEST_STATUS]} if line else {}
