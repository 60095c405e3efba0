"""qd.contrib.flask with the real Flask: command line, configuration, app context around jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.contrib.conftest import PYTHON, FrameworkProject
from tests.support import warm
from tests.support.redis import Client
from tests.support.witness import Witness

pytestmark = pytest.mark.usefixtures("clean_redis")

SHOP = """
from flask import Flask, current_app, g
from noted import note
from qd import Job
from qd.contrib.flask import QdFlask

ext = QdFlask()

@ext.qd.job("greet")
def greet(name: str) -> None:
    note("greet", current_app.config["SHOP"], name, g.get("seen"))
    g.seen = name

@ext.qd.job("agreet")
async def agreet(name: str) -> None:
    note("agreet", current_app.config["SHOP"], name)

@ext.qd.job("broken")
def broken() -> None:
    note("broken", current_app.name)
    raise ValueError("broken")

def create_app():
    app = Flask("shop")
    app.config["SHOP"] = "Corner"
    app.config["QD"] = {"url": "URL"}
    ext.init_app(app)

    @app.teardown_appcontext
    def gone(error):
        note("teardown", type(error).__name__)

    @app.post("/greet/<name>")
    def endpoint(name):
        return greet.dispatch(name).id

    @app.get("/run/<name>")
    def run(name):
        greet.run(name)
        return str(g.seen)

    return app
"""


@pytest.fixture
def shop(framed: Callable[..., FrameworkProject], server) -> FrameworkProject:
    return framed(shop=SHOP.replace("URL", server.url))


@pytest.fixture
def witness(shop: FrameworkProject) -> Witness:
    return Witness(shop)


def flask(shop: FrameworkProject, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [PYTHON, "-m", "flask", *words],
        cwd=shop.root,
        env=shop.env(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_flask_qd_work_runs_jobs_in_the_app_context(shop: FrameworkProject, witness: Witness):
    shop.python(
        """
        from shop import create_app
        client = create_app().test_client()
        assert client.post("/greet/ada").status_code == 200
        assert client.post("/greet/bob").status_code == 200
        """
    )
    before = len(witness.lines)  # lines of the request contexts
    work = shop.start("-m", "flask", "--app", "shop:create_app", "qd", "work", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert witness.lines[before:] == [
        "greet Corner ada None", "teardown NoneType", "greet Corner bob None", "teardown NoneType",
    ]  # fmt: skip


def test_async_and_failing_jobs_have_the_app_context(shop: FrameworkProject, witness: Witness, redis: Client):
    shop.python("from shop import *; create_app(); agreet.dispatch('ada'); broken.dispatch()")
    work = shop.start("-m", "flask", "--app", "shop:create_app", "qd", "work", "-w", "1", "--stop-when-empty")
    work.ends_clean()
    assert witness.lines == ["agreet Corner ada", "teardown NoneType", "broken shop", "teardown ValueError"]
    redis.call("DEL", "queues:default:failed", "queues:default:failed_at")


def test_run_in_a_request_uses_the_context_of_the_request(shop: FrameworkProject):
    shop.python("from shop import *; assert create_app().test_client().get('/run/ada').text == 'ada'")
    (shop.root / "witness").unlink()


def test_arguments_and_exit_codes_are_those_of_qd(shop: FrameworkProject):
    jobs = flask(shop, "--app", "shop:create_app", "qd", "declared")
    assert (jobs.returncode, "greet" in jobs.stdout) == (0, True), jobs.stderr
    assert flask(shop, "--app", "shop:create_app", "qd", "declared", "--nonsense").returncode == 2
    assert flask(shop, "--app", "shop:create_app", "qd", "health", "--max-ready", "0").returncode in (0, 1)
    assert "Usage: qd" in flask(shop, "--app", "shop:create_app", "qd", "work", "--help").stdout.replace(
        "python -m ", ""
    )
    assert "Run background jobs" in flask(shop, "--app", "shop:create_app", "qd").stdout


def test_an_unknown_key_is_rejected_by_name(shop: FrameworkProject):
    text = (shop.root / "shop.py").read_text().replace('{"url":', '{"urls":')
    (shop.root / "shop.py").write_text(text)
    done = flask(shop, "--app", "shop:create_app", "qd", "declared")
    assert done.returncode != 0
    assert "unknown key 'urls' in QD of the Flask app's config (did you mean 'url'?)" in done.stderr


def test_the_error_for_an_app_without_the_extension_names_the_fix(framed: Callable[..., FrameworkProject]):
    bare = framed(shop="from flask import Flask\napp = Flask('shop')\n")
    done = bare.qd("declared", "--app", "qd.contrib.flask:found", FLASK_APP="shop")
    assert done.returncode == 78
    assert "the Flask app shop has no qd: call QdFlask().init_app(app) where it is made" in done.stderr


def test_each_of_several_jobs_has_a_context_of_its_own(shop: FrameworkProject, witness: Witness):
    shop.python("from shop import *; create_app(); [(greet.dispatch('a'), agreet.dispatch('b')) for _ in range(5)]")
    work = shop.start("-m", "flask", "--app", "shop", "qd", "work", "-w", "1", "--concurrency", "8")
    work.wait_line("job.done", count=10)
    work.stop()
    assert witness.starting("greet") == ["greet Corner a None"] * 5
    assert witness.starting("agreet") == ["agreet Corner b"] * 5
    assert witness.starting("teardown") == ["teardown NoneType"] * 10
