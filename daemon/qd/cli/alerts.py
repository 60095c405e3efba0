"""`qd alerts`: looks every few seconds as `qd health` does, and tells a webhook or a program what is wrong and what is over.

    read_state -> findings -> new ones and those that are over -> one document -> webhook, exec

A program of its own: a webhook that hangs delays only the next look. Several may run, on several hosts: the holder of the
lease sends, and what was sent is on the server, so that its successor does not repeat it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click

from qd import __version__
from qd.cli import context, output
from qd.cli.diagnosis import HealthThresholds, over, reasons, refused_code, restarting
from qd.cli.output import quote
from qd.cli.state import State, read_state
from qd.cli.status import recent
from qd.config.settings import AlertSettings, Settings
from qd.drivers.keyspace import keys
from qd.errors import ConfigError, ConnectionLost, ServerRefused
from qd.log import Log
from qd.store import audit
from qd.store.base import KeyspaceStore
from qd.store.locks import Lease
from qd.store.statistics import Place, Rate

LOOKS = 2  # looks in a row that must agree before something is sent
PATIENCE = 10.0  # seconds for a webhook and for a program
BEAT = 60.0  # seconds between two calls of the heartbeat url
KEPT = 7 * 86400.0  # seconds
SHOWN = 20  # alerts in the text of one message
ENOUGH = 5  # jobs that must have ended in the window of a failure rate
STOPS = {signal.SIGTERM, signal.SIGINT}
HIDDEN = ("unserved", "no-master", "masters")  # not found for a while after `qd restart`
Findings = Mapping[str, str]  # what it is (`max-ready mail`) -> the fact, the thing with its value, the fix


@click.command("alerts")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--once", is_flag=True, help="Look once and send what is new, for cron. Exit 1: it was not sent.")
@click.option("--test", is_flag=True, help="Send a test message. Exit 1: it was not sent.")
@context.options
def command(queues: tuple[str, ...], once: bool, test: bool) -> int:
    """Notify a webhook or a program when something is wrong.

    Alerts are the findings of `qd health`, and queues beyond the limits of [alerts] and [alerts.queues.NAME]. With names,
    only these queues are checked. Runs until TERM or Ctrl-C; start it on one or more hosts.
    """
    found = context.settings()
    alerts, log = found.alerts, Log("alerts")
    context.given().only_looks = True
    if not (alerts.webhook or alerts.exec):
        ways = 'write webhook = "https://..." or exec = "..." below [alerts]'
        raise ConfigError(f"[alerts] does not say whom to tell: {ways}")
    sender = Sender(found, log, queues)
    context.pools(found)
    context.given().invalid = sender.file_is_invalid
    if test:
        return int(not sender.send({"test": "a test message of `qd alerts --test`"}, {}))
    if once:
        return int(not sender.look(at_once=True))
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    log.info("alerts.started", version=__version__, every=alerts.every)
    while True:
        sender.look()
        if (stop := signal.sigtimedwait(STOPS, alerts.every)) is not None:
            sender.leave()
            log.info("alerts.stopped", reason=f"signal {signal.Signals(stop.si_signo).name}")
            return 0


class Sender:
    """queues: those to check, () for all. told: alerts that were sent and are not over. changing: finding -> looks in a row
    that saw it appear, or gone."""

    def __init__(self, found: Settings, log: Log, queues: tuple[str, ...] = ()) -> None:
        self.found, self.alerts, self.log, self.queues = found, found.alerts, log, queues
        self.told = dict[str, str]()
        self.changing = dict[str, int]()
        self.away, self.failing = False, False
        self.invalid, self.still_invalid = False, False  # the file, at the last look; at this one
        self._beat = 0.0
        self.owner = f"{socket.gethostname()}/{os.getpid()}"

    def look(self, *, at_once: bool = False) -> bool:
        """Look once, and send what has changed. Returns False if that was refused or failed; the next look tries again."""
        with click.Context(click.get_current_context().command, parent=click.get_current_context()):
            try:
                store = context.store(self.found, self.found.control)
                if not at_once and self._lease().take(store) is not None:
                    return True  # another one sends
                self.told = self._read(store)
                self.still_invalid = False
                state = read_state(self.found, only=self.queues)
                findings = findings_of(state, self.alerts, recent(self.found))
                if restarting(state):  # which hides these findings and does not end them
                    hidden = {what: text for what, text in self.told.items() if what.split()[0] in HIDDEN}
                    findings = {**hidden, **findings}
            except (ConnectionLost, ServerRefused) as error:
                return self._server_away(error, at_once)
            if self.invalid and not self.still_invalid:
                self.log.info("config.valid")
            self.invalid = self.still_invalid
            if self.away:
                self.log.info("server.back")
            self.away = False
            sent = self._tell(findings, 1 if at_once else LOOKS, store)
        if not findings and not self.told:
            self._heartbeat()
        return sent

    def file_is_invalid(self, error: ConfigError) -> None:
        if not self.invalid:
            self.log.warning("config.invalid", error=str(error), effect="its last valid state is used")
        self.invalid = self.still_invalid = True

    def leave(self) -> None:
        """Let another one send from now on."""
        with suppress(ConnectionLost, ServerRefused):  # the lease expires
            self._lease().free(context.store(self.found, self.found.control))

    def send(self, begun: Findings, over: Findings) -> bool:
        """Returns False if the webhook or the program failed."""
        document = document_of(begun, over)
        try:
            if self.alerts.webhook:
                text = self.alerts.template.replace("{text}", json.dumps(document["text"])) or json.dumps(document)
                within(lambda: call(self.alerts.webhook, text.encode()), "the webhook")
            if self.alerts.exec:
                execute(self.alerts.exec, document)
        except OSError as error:
            if not self.failing:
                effect = "it counts as not told"
                self.log.warning("alert.not_sent", alerts=len(begun) + len(over), error=str(error), effect=effect)
            self.failing = True
            return False
        self.failing = False
        for what, text in begun.items():
            self.log.warning("alert.begun", alert=what, text=text)
        for what in over:
            self.log.info("alert.over", alert=what)
        return True

    def _tell(self, findings: Findings, looks: int, store: KeyspaceStore | None) -> bool:
        changed = {what for what in {*findings, *self.told} if (what in findings) != (what in self.told)}
        self.changing = {what: self.changing.get(what, 0) + 1 for what in changed}
        due = [what for what in sorted(changed) if self.changing[what] >= looks]
        begun = {what: findings[what] for what in due if what in findings}
        over = {what: self.told[what] for what in due if what not in findings}
        if not due:
            return True
        if not self.send(begun, over):
            return False
        self.told = {what: text for what, text in (self.told | begun).items() if what not in over}
        if store is None:
            return True
        events = [audit.Event("alert begun", {"alert": what}, text) for what, text in begun.items()]
        events += [audit.Event("alert over", {"alert": what}) for what in over]
        try:
            store.put(keys.ALERTS, json.dumps(self.told).encode(), KEPT)
            audit.record(store, *events)
        except (ConnectionLost, ServerRefused) as error:  # the next look reads what was told before, or is refused too
            self.log.warning("alert.not_stored", error=str(error), effect="the next look may tell it again")
        return True

    def _server_away(self, error: Exception, at_once: bool) -> bool:
        if not self.away:
            self.log.warning("server.away", error=str(error))
        self.away = True
        return self._tell(self.told | {f"server {self.found.control}": str(error)}, 1 if at_once else LOOKS, None)

    def _read(self, store: KeyspaceStore) -> dict[str, str]:
        """What another one, or this one before it was restarted, has sent; and what this one could not write to the server,
        because it was away."""
        own = {what: text for what, text in self.told.items() if what.startswith("server ")}
        try:
            told = json.loads(store.get(keys.ALERTS)[0] or b"{}")
            return {str(what): str(text) for what, text in told.items()} | own
        except (ValueError, AttributeError):
            return {}

    def _lease(self) -> Lease:
        return Lease(keys.ALERTS_BY, self.owner, 4 * self.alerts.every + 3 * PATIENCE)

    def _heartbeat(self) -> None:
        if not self.alerts.heartbeat or time.monotonic() - self._beat < BEAT:
            return
        self._beat = time.monotonic()
        try:
            within(lambda: call(self.alerts.heartbeat), "the heartbeat")
        except OSError as error:
            self.log.warning("heartbeat.failed", error=str(error))


def findings_of(state: State, alerts: AlertSettings, rates: Mapping[Place, Rate]) -> Findings:
    found = {}
    for reason in reasons(state, HealthThresholds()):
        found[" ".join(filter(None, (reason.kind, reason.queue or reason.master)))] = reason.text
    for master in state.living:
        if master.refused:
            found[f"refused-code {master.title}"] = "{} {}; {}".format(master.title, *refused_code(master, state.now))
    for place, why in state.away.items():
        found[f"connection {place}"] = why
    for line in state.queues:
        own = alerts.queues.get(line.name, alerts)
        for reason in over(line, HealthThresholds(max_ready=own.max_ready, max_age=own.max_wait), state):
            found[f"{reason.kind} {line.name}"] = reason.text
        rate = rates.get((line.connection, line.name), Rate())
        part = rate.failed / rate.leaves if rate.ended >= ENOUGH else 0.0
        if own.failure_rate is not None and part * 100 > own.failure_rate:
            fact = f"{part:.0%} of the jobs of the last 5 minutes failed, more than {own.failure_rate} %"
            text = f"queue '{line.name}': {fact}; see `qd failed summary -q {quote(line.name)}`"
            found[f"failure-rate {line.name}"] = text
    return found


def document_of(begun: Findings, over: Findings) -> dict[str, Any]:
    alerts = [{"state": "begun", "alert": what, "text": output.clean(text)} for what, text in begun.items()]
    alerts += [{"state": "over", "alert": what, "text": f"OVER: {output.clean(text)}"} for what, text in over.items()]
    texts = [each["text"] for each in alerts]
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return {"schema": 1, "at": output.iso(time.time()), "text": "\n".join(texts[:SHOWN] + more), "alerts": alerts}


def within(send: Callable[[], None], what: str) -> None:
    """In a thread, because a timeout of a socket is for each byte that it waits for. Raises OSError after PATIENCE."""
    failed = list[Exception]()

    def sent() -> None:
        try:
            send()
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            failed.append(error)

    thread = Thread(target=sent, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        raise OSError(f"{what} has not answered within {PATIENCE:g} s")
    if failed:
        raise OSError(f"{what}: {failed[0]}")


def call(url: str, body: bytes | None = None) -> None:
    """GET, or POST of a JSON document. Raises for each status of 400 and more."""
    headers = {"User-Agent": f"qd/{__version__}"} | ({"Content-Type": "application/json"} if body else {})
    with urlopen(Request(url, body, headers), timeout=PATIENCE):
        pass


def execute(line: str, document: Mapping[str, Any]) -> None:
    """Raises OSError if the program fails, or is not ready within PATIENCE; then it is killed with its children."""
    program = subprocess.Popen(["/bin/sh", "-c", line], stdin=subprocess.PIPE, start_new_session=True)
    try:
        program.communicate(json.dumps(document).encode(), PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        raise OSError(f"exec: {line} has not ended within {PATIENCE:g} s and was killed") from None
    if program.returncode:
        raise OSError(f"exec: {line} ended with {program.returncode}")
