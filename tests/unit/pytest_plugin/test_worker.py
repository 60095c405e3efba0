"""The environment of the real worker in pytest."""

from __future__ import annotations

from pathlib import Path

from qd import config
from qd.pytest_plugin.worker import Server, environ_of, moved


def test_the_worker_uses_the_scratch_server_even_if_the_url_of_the_project_is_in_a_file(tmp_path: Path):
    (tmp_path / "url").write_text("redis://production/0")
    (tmp_path / "qd.toml").write_text("[connections.redis]\n")
    file = {"QD_REDIS_URL_FILE": str(tmp_path / "url")}
    found = config.load(tmp_path / "qd.toml", environ=file)
    scratch = {"QD_REDIS_URL": "redis://scratch/0"}
    environ = environ_of(config.load(tmp_path / "qd.toml", environ=scratch))
    assert found.connections["redis"].url == "redis://production/0"
    worker = config.load(tmp_path / "qd.toml", environ={**file, **environ})
    assert worker.connections["redis"].url == "redis://scratch/0"


def test_the_worker_uses_it_even_if_the_project_names_another_driver(tmp_path: Path):
    text = '[qd]\ndefault = "main"\n[connections.main]\ndriver = "database"\nurl = "sqlite:///jobs.sqlite"\n'
    (tmp_path / "qd.toml").write_text(text)
    server = Server()
    try:
        here = moved(config.load(tmp_path / "qd.toml", environ={}), server)
        worker = config.load(tmp_path / "qd.toml", environ=environ_of(here))
    finally:
        server.stop()
    for settings in (here, worker):
        main = settings.connections["main"]
        assert (main.driver, main.url) == ("redis", server.url(0))
