"""What systemd wants to hear: READY, RELOADING, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT (sd_notify(3)).

The master calls it, nobody else (the shipped unit says NotifyAccess=main). Without NOTIFY_SOCKET no call does anything.
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
    """Sends one datagram a call; never raises, never blocks.

    What could not be sent (the receiver's queue is full) goes out with the next call, the newest value of each name.
    Each call opens its own socket, so a fork inherits none and nothing has to be closed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._unsent: dict[str, str] = {}
        self.watchdog_interval: float | None = _watchdog_interval(environ)
        """Seconds between two calls of `watchdog()`: half of what systemd allows. None: nobody watches this process."""

    @property
    def wanted(self) -> bool:
        """Is there anybody to tell?"""
        return self._address is not None

    def ready(self, status: str = "") -> bool:
        """The first round of workers has booted, or a reload is over."""
        return self._send({"READY": "1", **_status(status)})

    def reloading(self, status: str = "") -> bool:
        """A reload began; `ready()` ends it."""
        # The moment is what Type=notify-reload (systemd 253) asks for; older ones pass over it.
        moment = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        return self._send({"RELOADING": "1", "MONOTONIC_USEC": moment, **_status(status)})

    def stopping(self, status: str = "") -> bool:
        return self._send({"STOPPING": "1", **_status(status)})

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send(_status(text))

    def watchdog(self) -> bool:
        """This process is well; to be called each `watchdog_interval` seconds."""
        return self._send({"WATCHDOG": "1"})

    def extend(self, seconds: float) -> bool:
        """Do not end the start or the stop under way before `seconds` from now."""
        return self._send({"EXTEND_TIMEOUT_USEC": str(int(seconds * 1_000_000))})

    def _send(self, news: dict[str, str]) -> bool:
        """True: handed to systemd. False: nobody to tell, or it goes out with the next call."""
        if self._address is None or not news:
            return False
        if any(name in STATES for name in news):  # the newest state holds: an old one must not come after it
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
    """Remove the variables, so that no child speaks for the service."""
    for name in VARIABLES:
        environ.pop(name, None)


def _address(value: str) -> str | None:
    """A path, or an abstract name written with a leading `@`. None: nothing this process could speak to (vsock:...)."""
    if value.startswith("@") and len(value) > 1:
        return "\0" + value[1:]
    return value if value.startswith("/") else None


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    # WATCHDOG_PID names whom systemd watches; a child that still has the variables is not that one.
    try:
        usec = int(environ.get("WATCHDOG_USEC", ""))
        pid = int(environ.get("WATCHDOG_PID", "") or os.getpid())
    except ValueError:
        return None
    return usec / 2_000_000 if usec > 0 and pid == os.getpid() else None


def _status(text: str) -> dict[str, str]:
    line = " ".join(text.split())  # a line break would begin another variable
    return {"STATUS": line[:LONGEST_STATUS]} if line else {}
