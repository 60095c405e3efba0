"""Where each entry stands in the store, and how its ticks are taken: compared with what was read, so by one scheduler only.

    field = "<ms> <token> <mark>"    the last tick that was decided; who wrote it, in which claim; the timing of its entry

A reply may be lost. What was claimed then is kept (Place.unsure) by the very text that it would have written: whoever finds
that text in the field has taken the tick, and nobody else has. A job was sent in the same step; a function is run then.

One connection of the schedule: its server's clock, where its entries stand, and whether it is away.

look    once a second: TIME; on the control connection pauses and maintenance mode in the same round trip
claim   some at a time, the next before the answers to the first are there; what comes of a lost one is known when the field
        is read again (claims.py)

Fields of ticks that nobody needs: looked for once by each scheduler, a page at each look at its server.

of an entry          400 days after its last tick
of one on_every_host where its host has had no scheduler for seven days: hosts come and go by thousands. A host that has one
                     says so, in a field of its own
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from functools import partial
from typing import Any

from qd.dispatch.route import Message
from qd.drivers.base import Connector, Ticks
from qd.drivers.keyspace import keys
from qd.drivers.keyspace.base import Arg
from qd.drivers.types import Answers, Claim, Claimed, Outgoing
from qd.errors import ConnectionLost, QdError, ServerBusy, ServerRefused
from qd.log import Log
from qd.schedule.entry import Entry
from qd.scheduler.due import Backlog, Due, Moments, Reckoner, decided
from qd.scheduler.entry_job import EntryJob
from qd.store.base import beside
from qd.store.controls import Pause, by_and_why, read_down
from qd.store.schedule import FORGOTTEN, Field, read_field, read_paused, written_field

AHEAD = 3_600_000  # ms: a field so far ahead was written by a wrong clock, and would hold its entry for ever
LETTERS = 6


class Tokens:
    """One for each claim of a scheduler, none twice."""

    def __init__(self) -> None:
        self._base, self._count = secrets.token_hex(LETTERS // 2), 0

    def next(self) -> str:
        self._count += 1
        return f"{self._base}.{self._count:x}"


@dataclass(slots=True, eq=False)
class TickClaim:
    """A tick that is to be taken, and what is done then. skip: why it does not run; error: why its job could not be made.
    job: what is sent in the same step, None where the parcel sends itself."""

    place: EntryState
    due: Due
    after: bytes = b""
    skip: str = ""
    error: str = ""
    job: Outgoing | None = None
    parcel: Message | None = None

    @property
    def claim(self) -> Claim:
        place = self.place
        return Claim(place.queue, place.field, place.raw, self.after, self.due.at, self.job)


@dataclass(slots=True, eq=False)
class EntryState:
    """Where an entry stands. job: what it sends with its claim; None: it is run here after that, and never twice (lanes.py).
    last: its last tick as far as this scheduler knows, ms; raw: the field as it was read."""

    entry: Entry
    job: EntryJob | None
    queue: str
    field: str
    order: int
    key: tuple[str, str]  # of its timing
    raw: bytes = b""
    last: int = 0
    few: tuple[int, int] = (0, 0)  # between these moments not too many were missed: see moments.decided
    lost: bool = False  # the store had its field once, and has lost it
    answered: Due | None = None  # a tick that its filters were asked about, with what they said
    early: TickClaim | None = None  # the tick after `last`, which is yet to come, with its job (early.py)
    unsure: dict[bytes, TickClaim] = made(default_factory=dict)

    def want(self, due: Due) -> TickClaim:
        """That tick, by now. What was made for it before goes out once."""
        early, self.early = self.early, None
        return early if early is not None and early.due == due else TickClaim(self, due)

    def saw(self, raw: bytes, now: int, late: int) -> str:
        """The field is this. Returns what is strange about it, in words."""
        found = read_field(raw)
        self.lost = self.lost or bool(self.raw and not raw)
        self.raw, self.early = raw, None
        if found is None or found.at > now + AHEAD:
            self.last = now
            return (
                "the schedule of this entry began anew: a clock ahead of this one wrote its last tick" if found else ""
            )
        at = found.at
        if found.mark != self.key[1]:  # a deploy changed its timing: what is old was not due by this one
            at = max(at, now - late)
        if self.job is None and self.last <= now + AHEAD:
            at = max(at, self.last)  # what a server has lost is sent again with its job, but not run again
        self.last = at
        return ""


PERIOD = 1.0  # seconds from look to look
REST = 3.0  # times as long as a hanging server was waited for it is left alone, where there are others
PATIENCE = 2.0  # seconds to connect, and for a reply
BEHIND = 1000  # ms: what is due for longer waits until all that is in time is taken
JUMP = 1.0  # seconds by which a server's clock has to be off before it counts as set, not as a reply that was slow


class ControlFlags:
    """What operators have said: read by the control connection."""

    def __init__(self, force: bool) -> None:
        self.force = force
        self.pauses: dict[str, Pause] = {}
        self.down = ""  # why nothing runs; "": no maintenance


class ScheduleConnection:
    def __init__(self, queue: Connector, log: Log, late: float, standing: ControlFlags | None) -> None:
        self.queue, self.standing = queue, standing
        queue.patience(PATIENCE, PATIENCE)
        self.store = beside(queue)
        self.places: list[EntryState] = []
        self.moments: Moments[EntryState] = Moments()
        self.backlog: Backlog[EntryState] = Backlog()
        self._sweeping = Sweeping(queue.ticks, self.places)
        self.line: list[tuple[EntryState, Due]] = []  # runs of one moment out of it, until all of them are there
        self.late = round(late * 1000)
        self._log = log
        self._reckoner = Reckoner()
        self._offset = 0.0  # the server's unix seconds at monotonic 0, never more
        self.begun = self._clock_set = False
        self._look_at = self.rests_until = 0.0
        self._away_since: float | None = None
        self._asked_at = 0.0
        self.shares = False  # the loop has other servers to serve, which wait while this one is waited for
        self.busy = False  # it answers, and takes nothing
        self._delay = 0.0
        self._unread: set[str] = set()

    # -- the clock

    @property
    def now(self) -> int:
        """Unix ms by the server's clock; never ahead of it."""
        return int((time.monotonic() + self._offset) * 1000)

    def heard(self, now: float) -> None:
        offset = now - time.monotonic()
        self._clock_set = self._clock_set or abs(offset - self._offset) > JUMP
        self._offset = offset

    # -- looking

    def look(self) -> bool:
        """Whether this server's ticks may be taken now: it answers, and its fields are known."""
        at = self._asked_at = time.monotonic()
        if at < self.rests_until:
            return False
        if at >= self._look_at or not self.begun:
            try:
                self._ask()
                if not self.begun:
                    self._begin()
                self._sweeping.step(self.now)
            except (ConnectionLost, ServerRefused) as error:
                self.lost(error)
                return False
            self._look_at = at + PERIOD
            self._back()
        if self._clock_set:
            self._plan_anew()
        return True

    def _ask(self) -> None:
        prefix = self.store.prefix
        commands: list[tuple[Arg, ...]] = [("TIME",)]
        if self.standing is not None:
            commands += [("HGETALL", prefix + keys.SCHEDULE_PAUSED), ("GET", prefix + keys.DOWN)]
        replies = self.store.space.call_many(commands)
        if isinstance(replies[0], Exception):
            raise replies[0]
        self.heard(int(replies[0][0]) + int(replies[0][1]) / 1e6)
        if self.standing is not None:
            self._read(self.standing, *map(self._note, (keys.SCHEDULE_PAUSED, keys.DOWN), replies[1:]))

    def _note(self, key: str, reply: Any) -> Any:
        """None where the key cannot be read: that is no note, and said once."""
        if isinstance(reply, ServerRefused):
            if key not in self._unread:
                self._unread.add(key)
                name = self.store.prefix + key
                self._log.error(
                    "schedule.control_unreadable", key=name, error=str(reply), way="as if it were not there"
                )
            return None
        if isinstance(reply, Exception):
            raise reply
        self._unread.discard(key)
        return reply

    def _read(self, standing: ControlFlags, flat: Sequence[bytes] | None, down: bytes | None) -> None:
        flat = flat or ()
        fields = {flat[at].decode("utf-8", "replace"): flat[at + 1] for at in range(0, len(flat), 2)}
        standing.pauses = read_paused(fields, self.now / 1000)
        standing.down = "" if down is None or standing.force else f"maintenance mode{by_and_why(read_down(down))}"

    def _begin(self) -> None:
        """Read where each entry stands."""
        for place, raw in zip(self.places, self._fields(), strict=True):
            self.saw(place, raw)
        self._clock_set, self.begun = False, True

    def _fields(self) -> list[bytes]:
        """None of a key that the server refuses: entries are refused when they are to be taken, and asked again then."""
        try:
            return self.queue.ticks.read([place.field for place in self.places])
        except ServerRefused:
            return [b""] * len(self.places)

    # -- the entries

    def saw(self, place: EntryState, raw: bytes) -> None:
        """The field of the entry is this: plan its next tick."""
        strange = place.saw(raw, self.now, self.late)
        if strange:
            self._log.warning("schedule.clock_ahead", entry=place.entry.name, reason=strange)
        self.plan(place)

    def plan(self, place: EntryState) -> None:
        if not place.raw:  # nobody has seen it yet
            self.moments.add(self.now, place)
        elif (at := self.next_after(place, place.last)) is not None:
            self.moments.add(at, place)

    def _plan_anew(self) -> None:
        """The server's clock was set: what is planned by the old one would come too late, or never."""
        self._clock_set = False
        for place in [*self.backlog.clear(), *[place for _, places in self.moments.pop() for place in places]]:
            if place.raw:
                self.saw(place, place.raw)
            else:
                self.plan(place)

    def early(self, place: EntryState, at: int) -> None:
        """The server says so. Its clock was set, it may be, while this one stood in line."""
        if self._clock_set:
            self.moments.add(at, place)  # all are planned anew by the next look
        else:
            self.saw(place, place.raw)

    def in_time(self) -> list[tuple[int, list[EntryState]]]:
        """What is due, but for what should have been taken a while ago: that is in the backlog then."""
        self.fall_behind()
        return self.moments.pop(self.now)

    def fall_behind(self) -> None:
        for at, places in self.moments.pop(self.now - BEHIND):
            for place in places:
                self.backlog.add(at, place)

    def decided(self, place: EntryState, now: int) -> Due | None:
        """What is to be done about an entry that has a field. None: nothing yet."""
        first, missed = self.next_after(place, place.last), place.entry.missed
        if first is not None and first <= now <= first + self.late:
            return Due(first)  # as a rule
        due = decided(partial(self.next_after, place), place.last, now, self.late, missed, place.few)
        if due is None:
            self.plan(place)
        elif missed == "all" and due.at < now - self.late and not place.few[0] <= due.at < place.few[1]:
            place.few = (due.at, now - self.late)
        return due

    def next_after(self, place: EntryState, at: int) -> int | None:
        return self._reckoner.next_after(place.entry.timing, place.key, at)

    def claim(self, wants: Sequence[TickClaim]) -> Answers | None:
        """Nobody waits for the answers yet. None: the server is away, or the connection broke; it is known later."""
        self._asked_at = time.monotonic()
        try:
            return self.queue.ticks.begin([want.claim for want in wants])
        except (ConnectionLost, ServerRefused) as error:
            self.lost(error)
            return None

    def answers(self, claimed: Sequence[Answers]) -> list[list[Claimed] | None]:
        """To all that was claimed since. None: the reply was lost; it is known later."""
        self._asked_at = time.monotonic()
        found = [self._answer(each) for each in claimed]
        known = [answer for answers in found for answer in answers or ()]
        if known:
            busy = next((answer.refused for answer in known if isinstance(answer.refused, ServerBusy)), None)
            self.busy = busy is not None
            if busy is not None:
                self.refuses(busy)
            if now := max([answer.now for answer in known]):
                self.heard(now)
        return found

    def _answer(self, claimed: Answers) -> list[Claimed] | None:
        try:
            return claimed()
        except (ConnectionLost, ServerRefused) as error:
            if self.up:  # else it is known
                self.lost(error)
            return None

    def strange(self, place: EntryState) -> str:
        """Which of its keys hold something of another type, in words; "": none, as far as it can be seen."""
        try:
            return self.queue.ticks.strange(place.queue)
        except QdError:
            return ""

    @property
    def up(self) -> bool:
        """It answered when it was last asked."""
        return self.begun and self.rests_until <= time.monotonic()

    def passed(self, until: int) -> bool:
        """Nothing is or will be due up to that moment, ms."""
        return self.begun and not self.backlog and (self.moments.next or until + 1) > until

    @property
    def wants(self) -> float:
        """Seconds until it is to be looked at again."""
        at = time.monotonic()
        if at < self.rests_until:
            return self.rests_until - at
        if self.backlog:
            return 0.0
        wait = self._look_at - at
        if self.moments.next is not None:
            wait = min(wait, (self.moments.next - self.now) / 1000)
        return max(0.0, wait)

    # -- away and back

    def lost(self, error: QdError) -> None:
        at = time.monotonic()
        if self._away_since is None:
            self._away_since, self._delay = at, 0.05
            self._log.warning(
                f"{self.queue.settings.driver}.away", connection=self.queue.settings.name, error=str(error)
            )
        self._delay = min(1.0, self._delay * 2)
        rest = max(self._delay, REST * (at - self._asked_at)) if self.shares else self._delay
        self.rests_until = at + rest * random.uniform(0.5, 1.0)
        self._look_at = 0.0

    def refuses(self, error: ServerBusy) -> None:
        """It answers, and takes nothing."""
        self.busy = True
        self.queue.close()  # a replica by now: the name may lead elsewhere
        self.lost(error)

    def _back(self) -> None:
        if self._away_since is not None and not self.busy:
            after = time.monotonic() - self._away_since
            self._log.info(f"{self.queue.settings.driver}.back", connection=self.queue.settings.name, after=after)
            self._away_since = None

    def close(self) -> None:
        self.queue.close()


GONE = 7 * 86400.0  # seconds
SAYS = 3600.0  # seconds from one sign of a host to the next


class Sweeping:
    """places: those of this scheduler, which may be added to until the first step."""

    def __init__(self, ticks: Ticks, places: Sequence[EntryState]) -> None:
        self._ticks, self._places = ticks, places
        self._at: int | None = 0  # the next page; None: all were looked at
        self._says_at = 0.0

    def step(self, now: int) -> None:
        """now: unix ms. What the server refuses is left. Raises ConnectionLost."""
        try:
            self._say(now)
            if self._at is not None:
                following, fields = self._ticks.page(self._at)
                self._ticks.forget(self._old(fields, now))
                self._at = following or None
        except ServerRefused:
            self._at = None

    def _say(self, now: int) -> None:
        at = time.monotonic()
        if at < self._says_at:
            return
        for host in {keys.host_of(place.field) for place in self._places} - {""}:
            self._ticks.put(keys.of_host(host, ""), written_field(Field(now, "", "")))
        self._says_at = at + SAYS

    def _old(self, fields: Mapping[str, bytes], now: int) -> list[str]:
        known = {place.field for place in self._places}
        hosts = sorted({keys.host_of(name) for name in fields} - {""})
        signs = self._ticks.read([keys.of_host(host, "") for host in hosts])
        gone = {host for host, raw in zip(hosts, signs, strict=True) if is_old(raw, now, GONE)}
        return [
            name
            for name, raw in fields.items()
            if name not in known and is_old(raw, now, GONE if keys.host_of(name) in gone else FORGOTTEN)
        ]


def is_old(raw: bytes, now: int, seconds: float) -> bool:
    """What is not there is; what is none of ours is not."""
    found = read_field(raw)
    return not raw or (found is not None and found.at < now - seconds * 1000)
