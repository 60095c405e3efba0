"""Masters and workers of many hosts, as a Redis server sees them: the calls that their keepers and workers make, each on its
own connection, without processes and without work. bench/scale.py starts it as a program:

    python bench/fleet.py --hosts 100 --workers 10000 --queue fleet [--busy]

    keepers   at each whole second of the server's clock a beat with a report of all workers of the host; every ten
              seconds it renews their leases
    workers   idle: a turn that finds nothing, then BLPOP for up to three seconds. busy: each holds a job

It uses qd's own connectors, so that the bytes on the wire are those of qd. Prints "ready" when all are connected.
"""

import argparse
import json
import os
import random
import select
import sys
import time

from qd.config.settings import ConnectionSettings
from qd.drivers.base import ClientIdentity
from qd.drivers.keyspace import keys
from qd.drivers.redis.protocol import packed
from qd.drivers.redis.queue import RedisQueue
from qd.drivers.types import BeatRequest, Reserved

WAIT = 3.0  # seconds: the default of --sleep
RENEW = 10  # beats between two renewals: a third of the lease
LEASE = 30.0


class Worker:
    def __init__(self, settings: ConnectionSettings, token: str, slot: int) -> None:
        who = ClientIdentity(token, slot, title=f"qd:default:worker:{slot}", patience=60.0)
        self.redis, self.queue = RedisQueue(settings, who), settings.queue
        self.done: Reserved | None = None

    def turn(self) -> bool:
        """Ack the previous job, reserve the next. Whether there was one; its line is reported."""
        self.done = self.redis.turn(self.done, (self.queue,)).reserved
        if self.done is not None and (job := json.loads(self.done.member)).get("job") == "bench.stamp":
            from common import write_stamp

            write_stamp(**job["data"])
        return self.done is not None

    def wait(self) -> None:
        self.redis.connection.send(packed(("BLPOP", *self.redis._keys(keys.notify(self.queue)), WAIT)))

    def woken(self) -> None:
        """After the reply to the wait."""
        self.redis.connection.receive()
        while self.turn():
            pass
        self.wait()


class Keeper:
    def __init__(self, settings: ConnectionSettings, token: str, slots: range, busy: bool) -> None:
        self.redis = RedisQueue(settings, ClientIdentity(token, title="qd:default:keeper", patience=60.0))
        self.queue, self.token, self.slots, self.beats = settings.queue, token, slots, random.randrange(RENEW)
        worker = {
            "pid": 31337,
            "start": 8_640_000,
            "state": "busy" if busy else "idle",
            "done": 123_456,
            "grown": 7340032,
        }
        running = {"job": "app.jobs.SendInvoice" if busy else None, "queue": settings.queue if busy else None}
        workers = [{"slot": slot, **worker, **running, "since": 1795814118.123 if busy else None} for slot in slots]
        host = {
            "token": token,
            "host": f"host-{token[:4]}",
            "pid": 4711,
            "start": 8_640_000,
            "boot": "0" * 36,
            "ns": 4 << 30,
        }
        facts = {"root": False, "pool": "", "connection": "default", "queues": [settings.queue], "version": "0.9.0"}
        state = {
            "booted_at": 1795814000.5,
            "state": "running",
            "laravel_down": "",
            "stuck": {},
            "took_at": 1795814118.1,
        }
        counts = {"leases_lost": 0, "master_silent": 0.0, "keeper_restarts": 0, "crashes": [], "silent": []}
        self.report = json.dumps({**host, **facts, **state, **counts, "workers": workers, "schedulers": []})

    def record(self) -> None:
        """Make both beats once, and keep their bytes: later all keepers send at one moment."""
        self._recorded(False)  # the first call of a script on a server sends its text
        self.commands = [self._recorded(renew) for renew in (False, True)]

    def _recorded(self, renew: bool) -> bytes:
        sent: list[bytes] = []
        connection, send = self.redis.connection, self.redis.connection.send

        def remembered(command: bytes) -> None:
            sent.append(command)
            send(command)

        connection.send = remembered  # type: ignore[method-assign]
        request = BeatRequest(self.token, self.report, LEASE, renew, 0.0, list(self.slots))
        self.redis.beat((self.queue,), request)
        connection.send = send  # type: ignore[method-assign]
        return sent[-1]

    def send(self) -> None:
        self.beats += 1
        self.redis.connection.send(self.commands[self.beats % RENEW == 0])

    def receive(self) -> float:
        """The server's time."""
        return float(self.redis.connection.receive()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8, help="of all hosts together")
    parser.add_argument("--queue", default="fleet")
    parser.add_argument("--busy", action="store_true", help="each worker holds a job, which must be there")
    args = parser.parse_args()
    settings = ConnectionSettings("default", url=os.environ["QD_REDIS_URL"], queue=args.queue, retry_after=LEASE)
    each = args.workers // args.hosts
    tokens = [f"{random.getrandbits(64):016x}" for _ in range(args.hosts)]
    keepers = [Keeper(settings, token, range(each), args.busy) for token in tokens]
    workers = [Worker(settings, token, slot) for token in tokens for slot in range(each)]
    poll, by_descriptor = select.epoll(), {}
    for worker in workers:
        held = worker.turn()
        if held != args.busy:
            sys.exit(f"the queue {args.queue} has {'too few' if args.busy else 'unexpected'} jobs")
        descriptor = worker.redis.connection.fileno()
        by_descriptor[descriptor] = worker
        poll.register(descriptor, select.EPOLLIN)
    for keeper in keepers:
        keeper.record()
    print("ready", flush=True)
    serve(keepers, [] if args.busy else workers, poll, by_descriptor)


def serve(keepers: list[Keeper], idle: list[Worker], poll: select.epoll, by_descriptor: dict[int, Worker]) -> None:
    """Until the parent ends it. The workers' first waits are spread, as after some seconds of work."""
    waiting = iter(idle)
    began, started = time.monotonic(), 0
    due = 0.0
    while True:
        while started < min(len(idle), len(idle) * (time.monotonic() - began) / WAIT):
            next(waiting).wait()
            started += 1
        for descriptor, _ in poll.poll(max(0.0, min(0.005 if started < len(idle) else 1.0, due - time.monotonic()))):
            by_descriptor[descriptor].woken()
        if time.monotonic() >= due:
            for keeper in keepers:
                keeper.send()
            server = max([keeper.receive() for keeper in keepers])
            due = time.monotonic() + 1.0 - server % 1.0 + 0.001


if __name__ == "__main__":
    main()
