"""A real beanstalkd with a binlog, so that jobs survive a restart."""

from __future__ import annotations

from contextlib import suppress

from tests.support.programs import missing, program
from tests.support.servers.running import Running

LARGEST = 4 << 20  # bytes of a job; without -z it is 65,535


class Beanstalkd(Running):
    """url: beanstalkd://127.0.0.1:port. options: more arguments; a later -z wins. binlog: whether it has one."""

    name = "beanstalkd"

    def __init__(self, *options: str, binlog: bool = True) -> None:
        super().__init__()
        self.options, self.binlog = options, binlog

    @property
    def url(self) -> str:
        return f"beanstalkd://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "binlog").mkdir()

    def command(self) -> list[str]:
        kept = (
            ["-b", str(self.folder / "binlog"), "-F"] if self.binlog else []
        )  # no fsync: data written before a kill is safe
        return [
            program("beanstalkd"),
            "-l",
            "127.0.0.1",
            "-p",
            str(self.port),
            *kept,
            "-z",
            str(LARGEST),
            *self.options,
        ]

    def answers(self) -> bool:
        with self.client() as client:
            return bool(client.stats()["pid"])

    def client(self):
        """A greenstalk client that returns bytes."""
        import greenstalk

        return greenstalk.Client(("127.0.0.1", self.port), encoding=None)

    def empty(self) -> None:
        """Delete every job of every tube, except jobs reserved by other clients."""
        import greenstalk

        with self.client() as client:
            for tube in client.tubes():
                client.use(tube)
                # Delayed jobs first: one that becomes due is then deleted as ready.
                for peek in (client.peek_delayed, client.peek_ready, client.peek_buried):
                    with suppress(greenstalk.NotFoundError):
                        while True:
                            client.delete(peek())


def installed() -> None:
    """Skip the test if beanstalkd or greenstalk is missing."""
    program("beanstalkd")
    try:
        import greenstalk  # noqa: F401
    except ImportError:
        missing("greenstalk")
