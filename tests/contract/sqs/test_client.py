"""The HTTP connection to SQS: keep-alive, closed by the server, cut, chunked, over TLS and through a proxy. Every wait has
a limit, and a descriptor ends it."""

from __future__ import annotations

import base64
import os
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from qd.drivers.sqs.client import HttpConnection, Service, Woken
from qd.drivers.urls import SqsUrl
from qd.errors import ConnectionLost, ServerBusy, ServerRefused, Unreachable
from tests.support.network import Certificates
from tests.support.waiting import eventually

Act = Callable[[socket.socket], None]


class Small:
    """A server that reads a request and runs the next of `acts`, over TLS if it has a context."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.acts, self.accepted, self.requests, self.context = list[Act](), 0, list[bytes](), context
        self.serving: socket.socket | None = None
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listening.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                if self.context is not None:
                    sock = self.context.wrap_socket(sock, server_side=True)
                self.serving = sock
                while (request := whole(sock)) and self.acts:
                    self.requests.append(request)
                    self.acts.pop(0)(sock)
            except OSError:
                pass
            sock.close()

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        if self.serving is not None:
            with suppress(OSError):
                self.serving.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)


def whole(sock: socket.socket) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text:
        part = sock.recv(65536)
        if not part:
            return b""
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def replies(body: bytes = b"{}", status: str = "200 OK", *headers: str) -> Act:
    lines = "".join(f"{header}\r\n" for header in (f"Content-Length: {len(body)}", *headers))
    return lambda sock: sock.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)


def chunked(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
    sock.sendall(b"1\r\n}\r\n0\r\n\r\n")


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    sock.close()


def cut(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    sock.close()


def silence(sock: socket.socket) -> None:
    sock.settimeout(20)
    sock.recv(1)


def end(sock: socket.socket) -> None:
    sock.close()


def both(first: Act, second: Act) -> Act:
    def act(sock: socket.socket) -> None:
        first(sock)
        second(sock)

    return act


@pytest.fixture
def small() -> Iterator[Small]:
    server = Small()
    yield server
    server.close()


@pytest.fixture
def line() -> Iterator[HttpConnection]:
    made = HttpConnection(timeout=10.0)
    yield made
    made.close()


def ask(
    line: HttpConnection, port: int, wake: int = -1, seconds: float = 0.0, scheme: str = "http"
) -> tuple[int, bytes]:
    status, _, text = line.exchange(
        f"{scheme}://127.0.0.1:{port}/", {"X-Amz-Target": "AmazonSQS.None"}, b"{}", seconds, wake
    )
    return status, text


def test_a_connection_is_kept_open_and_reopened_after_the_server_closed_it(small: Small, line: HttpConnection) -> None:
    small.acts += [
        replies(b"1"),
        chunked,
        replies(b"3", "200 OK", "Connection: close"),
        replies(b"4"),
        replies(b"5"),
        replies(b"6"),
    ]
    assert [ask(line, small.port)[1] for _ in range(3)] == [b"1", b"{}", b"3"]
    assert small.accepted == 1
    small.acts[0] = both(small.acts[0], end)
    assert ask(line, small.port) == (200, b"4")
    assert line._http is not None
    sock = line._http.sock
    eventually(lambda: select.select([sock], [], [], 0)[0], what="the end of the connection")
    assert ask(line, small.port) == (200, b"5")
    assert small.accepted == 3
    line._used = float("-inf")
    assert ask(line, small.port) == (200, b"6")
    assert small.accepted == 4, "a connection that was idle for long is not reused"


@pytest.mark.parametrize("act", [garbage, cut, end], ids=["garbage", "cut", "closed"])
def test_an_invalid_reply_is_a_lost_connection_and_the_next_call_works(
    small: Small, line: HttpConnection, act: Act
) -> None:
    small.acts += [act, replies(b"2")]
    with pytest.raises(ConnectionLost, match=r"the connection to SQS at 127.0.0.1:.* broke") as error:
        ask(line, small.port)
    assert not isinstance(error.value, Unreachable)
    assert ask(line, small.port) == (200, b"2")
    assert len(small.requests) == 2, "nothing is sent twice"


def test_a_call_to_a_silent_server_times_out(small: Small, line: HttpConnection) -> None:
    small.acts += [silence]
    line.timeout, signs = 0.2, list[float]()
    line.on_progress(signs.append)
    with pytest.raises(ConnectionLost, match="no answer in time"):
        ask(line, small.port, seconds=0.1)
    assert signs[1:] == [0.0], "each timeout must count as progress, or the keeper looks hung"


def test_a_reply_that_is_not_from_sqs_is_an_error_of_the_server(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    small.acts += [replies(b"<html>busy</html>", "503 Service Unavailable"), replies(b"<html>", "502 Bad Gateway")]
    service = Service(SqsUrl(f"sqs://eu-west-1?endpoint=http://127.0.0.1:{small.port}"))
    for _ in range(2):
        with pytest.raises(ServerBusy, match="cannot serve now"):
            service.call("get_queue_url", QueueName="mail")
    for page in (b"<html>please log in</html>", b"[]", b'{"QueueUrl": "\xfc"}'):
        small.acts += [replies(page)]
        with pytest.raises(ConnectionLost, match="does not answer like SQS"):
            service.call("get_queue_url", QueueName="mail")
    for page, message in (
        (b"<p>f\xfcr Sie\ngesperrt", "403: <p>f\ufffdr Sie gesperrt"),
        (b'["no"]', '403: ["no"]'),
        (b"", "403"),
    ):
        small.acts += [replies(page, "403 Forbidden")]
        with pytest.raises(ServerRefused, match=f"^{re.escape(message)}$"):
            service.call("get_queue_url", QueueName="mail")
    service.close()
    assert len(small.requests) == 8, "boto3 must not retry by itself"
    assert not any(b"testing-secret" in request for request in small.requests)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def safe(certificates: Certificates) -> Iterator[Small]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    server = Small(context)
    yield server
    server.close()


def test_certificates_are_verified_and_a_wait_over_tls_can_be_ended(
    safe: Small, line: HttpConnection, certificates: Certificates
) -> None:
    with pytest.raises(Unreachable, match="certificate verify failed"):
        ask(line, safe.port, scheme="https")
    line.ca = certificates.path("ca.crt")
    safe.acts += [replies(b"1"), silence, replies(b"3")]
    assert ask(line, safe.port, scheme="https") == (200, b"1")
    read_end, write_end = os.pipe()
    threading.Timer(0.2, os.write, (write_end, b"x")).start()
    with pytest.raises(Woken):
        ask(line, safe.port, read_end, seconds=20, scheme="https")
    assert ask(line, safe.port, scheme="https") == (200, b"3")
    os.close(read_end)
    os.close(write_end)


def test_https_uses_the_proxy_of_the_environment(
    safe: Small, line: HttpConnection, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Small()

    def connect(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        there = socket.create_connection(("127.0.0.1", safe.port))
        back = threading.Thread(target=pass_on, args=(there, sock), daemon=True)
        back.start()
        pass_on(sock, there)

    monkeypatch.setenv("https_proxy", f"http://user:word@127.0.0.1:{proxy.port}/")
    monkeypatch.setenv("no_proxy", "")
    line.ca = certificates.path("ca.crt")
    proxy.acts += [connect]
    safe.acts += [replies(b"1")]
    assert ask(line, safe.port, scheme="https") == (200, b"1")
    assert proxy.requests[0].startswith(f"CONNECT 127.0.0.1:{safe.port}".encode())
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"user:word") in proxy.requests[0]
    line.close()
    proxy.close()


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while part := source.recv(65536):
            target.sendall(part)
    except OSError:
        pass
    target.close()


def test_a_descriptor_reused_by_another_file_is_not_touched(small: Small, line: HttpConnection, tmp_path: Path) -> None:
    """A job may close a descriptor of qd, whose number another file then gets."""
    small.acts += [replies(b"1"), replies(b"2")]
    ask(line, small.port)
    assert line._http is not None
    number = line._http.sock.fileno()
    (tmp_path / "other").write_text("")
    other = os.open(tmp_path / "other", os.O_WRONLY)
    os.dup2(other, number)
    assert ask(line, small.port) == (200, b"2")
    os.write(number, b"still there")
    os.close(number)
    os.close(other)
    assert (tmp_path / "other").read_text() == "still there"
