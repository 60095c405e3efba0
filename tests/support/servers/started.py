"""A server, or several that belong together, for the length of a `with`."""

from __future__ import annotations

from typing import Self


class Started:
    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        """Also where it has started half-way only."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
