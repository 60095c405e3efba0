"""A little web server with pictures to fetch: `python server.py [PORT]`.

/NAME.pgm is a picture; so is /flaky.pgm, but its first request gets a 503, and /slow.pgm, after a second. /hangs.pgm
never answers.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pgm import Picture, written

SIDE = 240


class PictureServer(ThreadingHTTPServer):
    """Listens as soon as it is created; port 0 picks a free port. close() also ends the requests that hang."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.asked: list[str] = []
        self.closing = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: PictureServer

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.server.asked.append(name)
        if name == "slow.pgm":
            self.server.closing.wait(1)
        if name == "hangs.pgm":
            self.server.closing.wait()
        elif name == "flaky.pgm" and self.server.asked.count(name) == 1:
            self.send_error(503)
        else:
            self.picture(name)

    def picture(self, name: str) -> None:
        shift = sum(name.encode())
        pixels = bytes((x * y // 64 + shift) % 256 for y in range(SIDE) for x in range(SIDE))
        body = written(Picture(SIDE, SIDE, pixels))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the workers' log is what matters."""


if __name__ == "__main__":
    with PictureServer(int(sys.argv[1]) if len(sys.argv) > 1 else 8000) as server:
        print(f"pictures at {server.url('one.pgm')}, flaky.pgm, slow.pgm and hangs.pgm; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.closing.set()
