"""How a tick is decided: by pauses, maintenance mode and filters whether it runs; one claim; what is told of it then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qd.connectors.base import Answers, Claimed
from qd.errors import ServerBusy
from qd.schedule import Entry
from qd.scheduler.asking import refusal
from qd.scheduler.claims import Place, Tokens, Want
from qd.scheduler.guard import Broke, Guard
from qd.scheduler.jobs import EntryJob
from qd.scheduler.moments import Due
from qd.scheduler.reach import Reach, Standing
from qd.scheduler.telling import Teller
from qd.store.schedule import Field, pause_of, written_field
from qd.store.stamps import by_and_why

HOLDS = 30.0  # seconds that user code may hold up one tick: hooks of the payload, listeners
AGAIN = 1000  # ms until a claim that was refused is tried again


class Taken(NamedTuple):
    """holder: who has the lock of its job, which was not sent. now: unix seconds; took: seconds that the claim took."""

    want: Want
    holder: str
    now: float
    took: float


def still(seconds: float, doing: str = "") -> None:
    """Nobody watches."""


class Asked(NamedTuple):
    """Claims whose answers nobody has waited for yet. began: monotonic seconds."""

    wants: Sequence[Want]
    began: float
    answers: Answers


class Taker:
    """down: maintenance mode, as whoever owns the scheduler knows it; theirs: its words where no note of ours says so.
    alive: called with the seconds that the next step may take, and with the entry if it is one's turn now, "" nobody's."""

    def __init__(self, standing: Standing, teller: Teller, guard: Guard) -> None:
        self.teller, self.standing, self.down = teller, standing, False
        self.theirs = "maintenance mode"
        self.alive: Callable[..., None] = still
        self._guard, self._tokens = guard, Tokens()
        self._refused: set[str] = set()

    def ask(self, reach: Reach, wants: Sequence[Want]) -> Asked | None:
        """Claim them. None: the server is away; they are due again."""
        if not reach.up:
            for want in wants:
                reach.moments.add(want.due.at, want.place)
            return None
        began = time.monotonic()
        for want in wants:
            self._make_ready(want)
        self.alive(HOLDS, "")
        parcels = [want.parcel for want in wants if want.parcel is not None]
        self.teller.queueing(parcels)
        answers = reach.claim(wants)
        if answers is None:
            self._unsure(reach, wants)
            return None
        return Asked(wants, began, answers)

    def taken(self, reach: Reach, asked: Sequence[Asked | None]) -> list[Taken]:
        """Those that were taken, to be told; what is due next of each entry is planned."""
        each_asked, found = [each for each in asked if each is not None], list[Taken]()
        for each, answers in zip(each_asked, reach.answers([each.answers for each in each_asked]), strict=True):
            if answers is None:
                self._unsure(reach, each.wants)
                continue
            took = time.monotonic() - each.began
            for want, answer in zip(each.wants, answers, strict=True):
                mine = self._answered(reach, want, answer)
                if mine is not None:
                    found.append(Taken(mine, answer.holder, answer.now, took))
        return found

    def _unsure(self, reach: Reach, wants: Sequence[Want]) -> None:
        """Whether they were taken is found out when they are claimed again."""
        for want in wants:
            want.place.unsure[want.after] = want
            reach.moments.add(want.due.at, want.place)

    def _make_ready(self, want: Want) -> None:
        place, due = want.place, want.due
        want.after = want.after or self._after(want)
        if not due.runs or not place.raw:
            return
        want.skip = self.why_not(place.entry, due.at / 1000) or due.said or ""
        if want.skip:
            want.parcel = want.job = None
        elif place.job is not None and want.parcel is None:
            self._make(place.job, want)

    def _after(self, want: Want) -> bytes:
        return written_field(Field(want.due.at, self._tokens.next(), want.place.key[1]))

    def _make(self, job: EntryJob, want: Want) -> None:
        self.alive(HOLDS, want.place.entry.name)
        try:
            want.parcel = job.parcel()
            want.job = job.outgoing(want.parcel)
        except Broke as broke:
            want.error = f"its job could not be made: {broke}"

    def make_early(self, place: Place, at: int) -> None:
        """What can be made of a tick that is yet to come. Whether it runs is decided at its moment."""
        job, place.early = place.job, None
        if job is None or not place.raw or place.entry.filters:
            return  # to be run, not seen yet, or to be asked about
        if (parcel := job.early(at)) is not None:
            want = place.early = Want(place, Due(at), job=job.outgoing(parcel), parcel=parcel)
            want.after = self._after(want)

    def why_not(self, entry: Entry, tick: float) -> str:
        """Why this tick does not run as far as the scheduler itself can tell, "" when it does; the user's own filters are
        asked elsewhere (asking.py)."""
        standing = self.standing
        if standing.pauses and (note := pause_of(standing.pauses, entry.name)):
            return f"paused{by_and_why(note)}"
        if (standing.down or self.down) and not entry.in_maintenance:
            return standing.down or self.theirs
        if not entry.filters:
            return ""
        return refusal([each for each in entry.filters if not each.foreign], tick, self._guard)

    def _answered(self, reach: Reach, want: Want, answer: Claimed) -> Want | None:
        """The tick that was taken: this one, or one whose reply had been lost before."""
        place = want.place
        if answer.taken:
            place.unsure.clear()
            place.raw, place.last = want.after, want.due.at
            reach.plan(place)
            self._refused.discard(place.entry.name)
            return want
        if answer.early:
            reach.early(place, want.due.at)
        elif answer.found is not None:
            mine = place.unsure.pop(answer.found, None)
            reach.saw(place, answer.found)
            self._forget_unsure(place, reach.now / 1000)
            return mine
        elif isinstance(answer.refused, ServerBusy):
            reach.moments.add(want.due.at, place)
        else:
            self._refuse(reach, place, answer.refused)
            reach.moments.add(reach.now + AGAIN, place)
        return None

    def _forget_unsure(self, place: Place, now: float) -> None:
        """Another went on before we could ask: whether we had taken those ticks nobody can tell any more. A job was sent
        with its tick, by whoever took it; what is run may have been ours to run."""
        for after, want in list(place.unsure.items()):
            if want.due.at <= place.last:
                del place.unsure[after]
                if place.job is None and want.due.runs and want.due.at < place.last:
                    reason = "the connection broke while it was taken, and another host went on: nobody may have run it"
                    self.teller.skipped(want, reason, now)

    def _refuse(self, reach: Reach, place: Place, error: Exception | None) -> None:
        name = place.entry.name
        if name not in self._refused:
            self._refused.add(name)
            self.alive(HOLDS)  # of ten thousand entries each key is looked at
            self.teller.log.error("schedule.refused", entry=name, error=reach.strange(place) or str(error))

    # -- taken

    def tell(self, taken: Sequence[Taken]) -> list[Want]:
        """What became of them. Returns those runs that are to be started."""
        return [each.want for each in taken if self._told(*each)]

    def _told(self, want: Want, holder: str, now: float, took: float) -> bool:
        """Whether it is a run that is to be started."""
        place = want.place
        self.alive(HOLDS, place.entry.name)
        if want.due.missed:
            self.teller.missed(want, now)
        if not want.due.runs:
            return False
        if want.skip:
            self.teller.skipped(want, want.skip, now)
        elif want.error:
            self.teller.failed(want, want.error, now)
        elif place.job is None:
            return True
        elif holder:
            self.teller.held(want, holder, now)
        else:
            self._send(place.job, want, now, took)
        return False

    def _send(self, job: EntryJob, want: Want, now: float, took: float) -> None:
        if want.job is None and want.parcel is not None:  # its class has a send() of its own
            try:
                job.by_hand(want.parcel)
            except Broke as broke:
                return self.teller.failed(want, f"its send() {broke}", now)
        self.teller.sent(want, now, took)
