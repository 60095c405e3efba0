"""A credential provider under the real command: master, keeper, workers and commands while the password changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import MakeProject, Project
from tests.support.redis import Client
from tests.support.servers.redis import Server
from tests.support.waiting import eventually
from tests.support.witness import JOBS, Witness

FIRST, SECOND = "first-password-1", "second-password-2"
PROVIDER = """
from pathlib import Path
from redis.credentials import CredentialProvider

class FromFile(CredentialProvider):
    def get_credentials(self):
        return "default", Path(__file__).with_name("word").read_text()

provider = FromFile()
"""
OF_CLIENT = """
import os, sys, time
from pathlib import Path
import redis
from aws import provider
from qd import Qd, current_job
app = Qd(redis=redis.Redis("127.0.0.1", %d, credential_provider=provider))
"""


@pytest.fixture
def locked() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(autouse=True)
def operator(locked: Server) -> Iterator[Client]:
    """Signed in before there was a password."""
    with locked.client() as client:
        client.call("CONFIG", "SET", "requirepass", FIRST)
        yield client


@pytest.fixture(params=["in the file", "of the client"])
def shop(project: MakeProject, locked: Server, request: pytest.FixtureRequest) -> Project:
    """Its provider reads the password from the file `word`."""
    found = project(jobs=(OF_CLIENT % locked.port if request.param == "of the client" else "") + JOBS)
    text = '[qd]\napp = "jobs:app"\n'
    if request.param == "in the file":
        text += f'[connections.redis]\nurl = "{locked.tcp_url}"\ncredentials = "aws:provider"\n'
    (found.root / "qd.toml").write_text(text)
    (found.root / "aws.py").write_text(PROVIDER)
    (found.root / "word").write_text(FIRST)
    found.allowed |= {"aws.py", "word"}
    return found


def rotate(operator: Client, word: Path) -> None:
    """A new password, and all connections with the old one are cut."""
    word.write_text(SECOND)
    operator.call("CONFIG", "SET", "requirepass", SECOND)
    operator.call("CLIENT", "KILL", "TYPE", "normal")


def named(operator: Client, name: str) -> bool:
    return f" name={name} " in operator.text("CLIENT", "LIST")


def test_keeper_workers_and_commands_continue_with_a_new_password(shop: Project, operator: Client) -> None:
    witness = Witness(shop)
    work = shop.work("-w", "1")
    shop.python("from jobs import quick\nquick.dispatch(1)")
    witness.wait("quick 1")
    rotate(operator, shop.root / "word")
    shop.python("from jobs import quick\nquick.dispatch(2)")
    witness.wait("quick 2")
    eventually(lambda: named(operator, "qd:default:keeper"), 30, what="the keeper's connection")
    status = shop.qd("status")
    assert (status.returncode, status.stderr) == (0, "")
    assert shop.qd("pause", "default").returncode == 0
    assert operator.call("EXISTS", "queues:default:paused") == 1
    work.stop()
    assert FIRST not in "".join(work.all_lines)
    assert SECOND not in "".join(work.all_lines)


def test_without_the_app_a_command_is_refused(shop: Project) -> None:
    text = (shop.root / "qd.toml").read_text()
    (shop.root / "qd.toml").write_text(text.replace('app = "jobs:app"\n', ""))
    done = shop.qd("status")
    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 1
    assert "no app is named" in done.stderr or "has no url" in done.stderr
    named = shop.qd("status", "--app", "jobs:app")
    assert (named.returncode, named.stderr) == (0, "")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("None", "returns None instead of (user, password)"),
        ("'me', 'secret-0123\\udc80'", "returns a password that UTF-8 cannot encode"),
        ("'me', b'secret-0123'", "returns an object of type bytes as password"),
        ("int('secret-0123')", "raises ValueError ("),
        ("exit('secret-0123')", "raises SystemExit ("),
    ],
)
def test_a_provider_that_fails_is_one_line(shop: Project, answer: str, error: str) -> None:
    broken = PROVIDER.replace('"default", Path(__file__).with_name("word").read_text()', answer)
    (shop.root / "aws.py").write_text(broken)
    for words, code in (["status"], 69), (["work", "-w", "1"], 78):
        done = shop.qd(*words)
        assert done.returncode == code
        assert error in done.stderr
        assert "Traceback" not in done.stderr
        assert "secret-0123" not in done.stderr + done.stdout
        assert len([line for line in done.stderr.splitlines() if error in line]) == 1


@pytest.mark.parametrize("shop", ["in the file"], indirect=True)
def test_a_provider_that_is_not_there_ends_the_start(shop: Project) -> None:
    (shop.root / "aws.py").write_text(PROVIDER.replace("provider = ", "other = "))
    done = shop.qd("work", "-w", "1")
    assert done.returncode == 78
    assert "connection 'redis': credentials 'aws:provider' does not exist: module aws has no provider" in done.stderr
