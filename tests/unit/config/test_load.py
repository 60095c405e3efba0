"""The configuration: precedence, the origin of each value, and error messages."""

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from qd import config
from qd.config import overridden_urls
from qd.config.file import lines_of
from qd.config.settings import SECTIONS, LaravelSettings, check_work, environ_name
from qd.errors import ConfigError
from qd.options.tables import WORK

URL = '[connections.redis]\nurl = "redis://localhost:6379/0"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder):
    def write(text, name="qd.toml"):
        (folder / name).write_text(textwrap.dedent(text))
        return folder / name

    return write


def load(path=None, **more):
    return config.load(path, **{"environ": {}, **more})


def refused(path=None, **more):
    """The error message of `load`, which is always one line."""
    with pytest.raises(ConfigError) as error:
        load(path, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- layers ----------------------------------------------------------------------------------------------------------


def test_without_configuration_the_defaults_apply(folder):
    found = load()
    assert (found.root, found.file, found.app, found.imports, found.default) == (folder, None, "", (), "redis")
    assert found.connections["redis"].url is None
    assert found.connections["redis"].retry_after == 30.0
    assert (found.work.timeout, found.work.queues, found.work.connection) == (60.0, ("default",), "redis")
    assert found.work.workers >= 1
    assert found.laravel is None
    assert set(found.origins.values()) == {"built in"}


def test_each_layer_overrides_the_ones_below_it(write):
    write("[worker]\ntimeout = 10\n")
    assert load().work.timeout == 10.0
    write("[worker]\ntimeout = 10\n[pools.mail]\ntimeout = 20\n")
    assert load().work.timeout == 10.0
    assert load(pool="mail").work.timeout == 20.0
    environ = {"QD_TIMEOUT": "30s"}
    assert load(pool="mail", environ=environ).work.timeout == 30.0
    assert load(pool="mail", environ=environ, flags={"timeout": 40.0}).work.timeout == 40.0


def test_each_value_knows_its_origin(write):
    write("""\
        [worker]
        tries = 2
        timeout = 10
        backoff = [
          1,
          5,
        ]
        [pools.mail]
        # a comment
        timeout = 20
        """)
    found = load(environ={"QD_SLEEP": "1s"}, flags={"pool": "mail", "rest": 0.5, "queues": ("a",)})
    origins = {
        name: found.origins[f"worker.{name}"]
        for name in ("tries", "timeout", "backoff", "sleep", "rest", "queues", "pool")
    }
    assert origins == {
        "tries": "qd.toml:2", "timeout": "qd.toml:10", "backoff": "qd.toml:4", "sleep": "environment QD_SLEEP",
        "rest": "flag --rest", "queues": "command line", "pool": "flag --pool",
    }  # fmt: skip
    assert found.origins["worker.memory"] == "built in"


@pytest.mark.parametrize("row", WORK.values(), ids=lambda row: row.name)
def test_every_option_is_read_from_its_flag_its_key_and_its_variable(row, write):
    examples = {
        "span": "7s",
        "spans": "7s",
        "share": "0.7",
        "count": "7",
        "size": "7M",
        "switch": "true",
        "names": "seven",
        "queues": "seven",
        "name": "seven",
    }
    word = row.choices[-1] if row.choices else examples[row.kind]
    file = '[connections.seven]\nurl = "redis://h/0"\n[pools.seven]\n'
    write(file)
    wanted = row.read(word)
    if row.name == "connection":
        assert load(flags={"connection": "seven"}).work.connection == "seven"
        return
    assert getattr(load(flags={row.name: wanted}).work, row.name) == wanted
    if row.environ:
        found = load(environ={row.environ: word})
        assert (getattr(found.work, row.name), found.origins[f"worker.{row.name}"]) == (
            wanted,
            f"environment {row.environ}",
        )
    if row.in_file:
        write(f"{file}[worker]\n{row.name} = {'true' if row.kind == 'switch' else repr(word)}\n")
        found = load()
        assert (getattr(found.work, row.name), found.origins[f"worker.{row.name}"]) == (wanted, "qd.toml:5")
    else:
        write(f"{file}[worker]\n{row.name} = true\n")
        assert f"unknown key '{row.name}' in qd.toml:5 [worker]" in refused()


@pytest.mark.parametrize("section", ["qd", "connections.NAME", "laravel", "failed", "signing"])
def test_every_other_key_is_read_from_its_variable(section, folder):
    words = {"url": "redis://other/1", "span": "7s", "count": "7", "driver": "redis", "size": "7M", "switch": "no"}
    words |= {
        "keys": "a:0123456789abcdef,b:0123456789abcdef",
        "database": "sqlite:////failed.sqlite",
        "text": "/redis",
        "reference": "shop.aws:provider",
    }
    for row in (each for each in SECTIONS[section].values() if not each.file_of):
        word = words.get(row.kind, "redis")
        variable = environ_name(row, "redis")
        environ = {variable: word, **({"QD_LARAVEL_CACHE_URL": "redis://c/1"} if section == "laravel" else {})}
        if variable == "QD_LARAVEL_CACHE_URL":
            word = environ[variable] = "redis://other/1"
        found = load(environ=environ)
        homes = {"connections.NAME": found.connections["redis"], "laravel": found.laravel, "failed": found.failed}
        homes["signing"] = found.signing
        held = homes.get(section, found)
        assert getattr(held, row.name) == row.read(word)
        assert found.origins[f"{section.replace('NAME', 'redis')}.{row.name}"] == f"environment {variable}"


SECRETS = [(section, row) for section, rows in SECTIONS.items() for row in rows.values() if row.file_of]
USERS = f"ana:read:scrypt${'0' * 32}${'0' * 128}\nbob:write:scrypt${'1' * 32}${'1' * 128}"
VALUES = {
    "url": "redis://u:pw@secret/1",
    "cache_url": "redis://secret/1",
    "database": "mysql://u:pw@h/db",
    "users": USERS,
}


@pytest.mark.parametrize(("section", "row"), SECRETS, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize("layer", ["file", "environment"])
def test_a_secret_is_read_from_the_file_that_its_key_or_variable_names(section, row, layer, write):
    write(VALUES.get(row.file_of, "https://hook.example.com/secret") + "\r\n\n", "hidden")
    name = section.replace("NAME", "redis")
    variable = environ_name(row, "redis")
    if layer == "file":
        write(f'[{name}]\n{row.name} = "hidden"\n')  # relative to qd.toml
    found = load(environ={variable: "hidden"} if layer == "environment" else {})
    home = found.connections["redis"] if section == "connections.NAME" else getattr(found, section)
    secret = VALUES.get(row.file_of, "https://hook.example.com/secret")
    assert getattr(home, row.file_of) == (tuple(secret.split("\n")) if "\n" in secret else secret)
    where = "qd.toml:2" if layer == "file" else f"environment {variable}"
    path = str(Path.cwd() / "hidden")
    assert found.origins[f"{name}.{row.file_of}"] == f"{where}, file {path}"
    assert found.secret_files == (path,)


def test_the_options_that_may_hold_a_secret_have_a_file():
    assert {row.file_of for _, row in SECRETS} == {"url", "cache_url", "database", "webhook", "heartbeat", "users"}


def test_a_variable_overrides_the_secret_of_the_file_and_the_other_way_round(write):
    write("redis://file/1\n", "hidden")
    write(URL)
    assert load(environ={"QD_REDIS_URL_FILE": "hidden"}).connections["redis"].url == "redis://file/1"
    assert (
        load(environ={"QD_REDIS_URL_FILE": "hidden", "REDIS_URL": "redis://r/1"}).connections["redis"].url
        == "redis://file/1"
    )
    write('[connections.redis]\nurl_file = "absent"\n')
    assert load(environ={"QD_REDIS_URL": "redis://env/1"}).connections["redis"].url == "redis://env/1"


def test_a_secret_that_is_given_twice_in_one_layer_is_refused(write):
    write('[connections.redis]\nurl = "redis://h/0"\nurl_file = "hidden"\n')
    assert refused() == "qd.toml:3: url and url_file are both given, remove one of them"
    found = refused(environ={"QD_REDIS_URL": "redis://h/0", "QD_REDIS_URL_FILE": "hidden"})
    assert (
        found == "environment QD_REDIS_URL_FILE: QD_REDIS_URL and QD_REDIS_URL_FILE are both given, remove one of them"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "qd.toml:2: cannot read webhook from {path}: No such file or directory"),
        (b"", "qd.toml:2: {path} is empty, write the value of webhook into it"),
        (b" \n", "qd.toml:2: {path} is empty, write the value of webhook into it"),
        (b"\xff\xfe", "qd.toml:2: cannot read webhook from {path}: it is not UTF-8 text"),
        (b"hunter2", "qd.toml:2, file {path}: not an http:// or https:// url"),
        (b"https://h/hunter2\nhttps://h/hunter2", "qd.toml:2, file {path}: not an http:// or https:// url"),
    ],
)
def test_a_secret_file_that_cannot_be_used_is_one_clear_error(content, expected, write, folder):
    write('[alerts]\nwebhook_file = "hidden"\n')
    if content is not None:
        (folder / "hidden").write_bytes(content)
    assert refused() == expected.format(path=folder / "hidden")


def test_a_secret_is_not_read_from_a_fifo_whose_reading_may_never_end(write, folder):
    write('[alerts]\nwebhook_file = "hidden"\n')
    os.mkfifo(folder / "hidden")
    assert refused() == f"qd.toml:2: cannot read webhook from {folder / 'hidden'}: it is not a regular file"


def test_an_empty_variable_counts_as_not_set(folder):
    assert load(environ={"QD_TIMEOUT": "", "QD_CONFIG": "", "QD_POOL": ""}).origins["worker.timeout"] == "built in"


def test_a_value_that_was_not_given_is_no_layer(write):
    write('[qd]\nimports = ["shop.mail"]\n' + URL)
    found = load(flags={"timeout": None, "queues": (), "pool": None}, code={"url": None, "imports": ()})
    assert found.imports == ("shop.mail",)
    assert found.work.timeout == 60.0


# --- url -------------------------------------------------------------------------------------------------------------


ENV = ("redis://env/0", "environment QD_REDIS_URL")
CODE = ("redis://code/0", "Qd(...)")
FILE = ("redis://localhost:6379/0", "qd.toml:2")
CACHE = ("redis://cache/0", "environment REDIS_URL")


@pytest.mark.parametrize("cache", [(), (CACHE,)], ids=["", "REDIS_URL"])
@pytest.mark.parametrize("file", [(), (FILE,)], ids=["", "file"])
@pytest.mark.parametrize("code", [(), (CODE,)], ids=["", "code"])
@pytest.mark.parametrize("env", [(), (ENV,)], ids=["", "QD_REDIS_URL"])
def test_the_url_comes_from_qd_redis_url_then_code_then_the_file_and_last_from_redis_url(write, env, code, file, cache):
    write(URL if file else "[connections.redis]\n")
    environ = {origin.split()[1]: url for url, origin in (*env, *cache)}
    at = load(environ=environ, code={"url": code[0][0]} if code else {}).connections["redis"]
    expected = next(iter((*env, *code, *file, *cache)), (None, "built in"))
    assert (at.url, at.url_origin) == expected


@pytest.mark.parametrize(
    ("own", "url", "expected"),
    [
        ("sqlite:///jobs.sqlite", "redis://h/0", ["QD_REDIS_URL overrides url (qd.toml:2: sqlite:///jobs.sqlite)"]),
        ("redis://:pw@a/0", "redis://b/0", ["QD_REDIS_URL overrides url (qd.toml:2: redis://:***@a/0)"]),
        ("redis://a/0", "redis://:pw@a/0", []),
        ("embedded:", "redis://h/0", []),  # it is for development
        ("sqlite:///jobs.sqlite", "", []),
    ],
)
def test_a_url_of_the_file_that_a_variable_overrides_with_another_server_is_reported(write, own, url, expected):
    write(f'[connections.redis]\nurl = "{own}"\n')
    assert overridden_urls(load(environ={"QD_REDIS_URL": url})) == expected


def test_a_missing_url_is_an_error_only_when_it_is_needed(folder):
    found = load()
    with pytest.raises(ConfigError) as error:
        found.connection()
    assert "QD_REDIS_URL" in str(error.value)
    assert 'url = "embedded:"' in str(error.value)


def test_redis_url_is_only_for_the_connection_named_redis(write):
    write('[connections.main]\nprefix = "x"\n')
    found = load(environ={"REDIS_URL": "redis://other/0"})
    assert found.default == "main"
    with pytest.raises(ConfigError, match="set QD_MAIN_URL"):
        found.connection()
    assert load(environ={"QD_MAIN_URL": "redis://main/0"}).connection().url == "redis://main/0"


def test_the_url_in_code_is_for_the_default_connection(write):
    write('[qd]\ndefault = "b"\n[connections.a]\n[connections.b]\n')
    found = load(code={"url": "redis://code/0"})
    assert found.connection("b").url == "redis://code/0"
    assert found.connections["a"].url is None


@pytest.mark.parametrize("url", ["embedded:", "embedded:?db=1", "unix:///run/valkey.sock", "rediss://h/0"])
def test_known_urls_are_accepted(url, folder):
    assert load(code={"url": url}).connection().url == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:6379", "unknown kind of url 'localhost:'"),
        ("reddis://u:secret@h/0", "unknown kind of url 'reddis:' (did you mean 'redis'?)"),
        ("redis+clutser://h/0", "unknown kind of url 'redis+clutser:' (did you mean 'redis+cluster'?)"),
        ("redis:secret", "a url of kind 'redis:' needs two slashes (write redis://...)"),
        ("unix:/run/secret.sock", "a url of kind 'unix:' needs two slashes (write unix:///run/redis.sock)"),
        ("secret", "not a url"),
    ],
)
def test_unknown_urls_are_refused_without_showing_them(url, expected, folder):
    error = refused(environ={"QD_REDIS_URL": url})
    assert error.startswith("environment QD_REDIS_URL: ")
    assert expected in error
    assert "secret" not in error


# --- connections and pools -------------------------------------------------------------------------------------------


def test_an_unknown_connection_is_refused_with_the_known_ones(write):
    write("[connections.redis]\n[connections.reports]\n")
    with pytest.raises(
        ConfigError, match=r"unknown connection 'report' \(did you mean 'reports'\?\) \(known: redis, reports\)"
    ):
        load().connection("report")
    assert "unknown connection 'x' (flag --connection) (known: redis, reports)" in refused(flags={"connection": "x"})
    assert "unknown connection 'x' as default (environment QD_CONNECTION)" in refused(environ={"QD_CONNECTION": "x"})
    write('[qd]\ncontrol = "x"\n[connections.redis]\n')
    assert "unknown connection 'x' as control (qd.toml:2)" in refused()


def test_several_connections_need_a_default_unless_one_is_redis(write):
    write("[connections.a]\n[connections.b]\n")
    assert 'write default = "a" below [qd]' in refused()
    write("[connections.a]\n[connections.redis]\n")
    assert load().default == "redis"


def test_a_pool_uses_its_connection_and_its_default_queue(write):
    write('[connections.redis]\n[connections.b]\nqueue = "bulk"\n[pools.p]\nconnection = "b"\n')
    found = load(pool="p", environ={"QD_CONNECTION": "redis"})
    assert (found.work.connection, found.work.queues, found.work.pool) == ("b", ("bulk",), "p")
    assert load(pool="p", flags={"connection": "redis"}).work.queues == ("default",)


def test_queues_may_have_weights(write):
    write('[worker]\nqueues = ["high=5", "low=1"]\n[pools.mail]\nqueues = ["mail=2", "sms=1"]\n')
    found = load()
    assert (found.work.queues, found.work.weights, found.work.weighted) == (
        ("high", "low"),
        (5, 1),
        ("high=5", "low=1"),
    )
    assert found.work.pooled == ("mail", "sms")
    assert load(pool="mail").work.weights == (2, 1)
    assert load(environ={"QD_QUEUES": "a=2,shard=5=1"}).work.queues == ("a", "shard=5")
    assert load(flags={"queues": ("a", "b")}).work.weights == ()
    assert config.from_json(config.to_json(found)).work == found.work
    write('[worker]\nqueues = ["high=5", "low"]\n')
    assert (
        refused() == "queues in qd.toml:2 [worker]: 'low' has no weight, and 'high=5' has: write low=1, or no weights"
    )


def test_the_default_queue_of_a_connection_may_be_called_like_a_weight(write):
    write('[connections.redis]\nqueue = "shard=5"\n')
    assert (load().work.queues, load().work.weights) == (("shard=5",), ())


def test_an_unknown_pool_is_refused_with_the_known_ones(write):
    write("[pools.mail]\n[pools.web]\n")
    assert refused(pool="mial") == "unknown pool 'mial' in qd.toml (did you mean 'mail'?) (known: mail, web)"
    assert "unknown pool 'x'" in refused(environ={"QD_POOL": "x"})
    write("")
    assert "write [pools.x] into qd.toml" in refused(flags={"pool": "x"})


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("redis://h/0", "redis"),
        ("rediss+sentinel://h/main", "redis"),
        ("postgresql+psycopg://h/shop", "database"),
        ("sqlite:///jobs.db", "database"),
        ("beanstalkd://h", "beanstalkd"),
        ("sqs://eu-central-1", "sqs"),
    ],
)
def test_the_scheme_of_a_url_selects_the_driver(url, driver, write):
    write(f'[connections.redis]\nurl = "{url}"\n')
    assert load().connection("redis").driver == driver


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:///jobs.db", "database"), ("sqs://h", "sqs"), ("unix:///r", "redis")]
)
def test_without_a_file_the_connection_is_named_after_its_driver(url, name, folder):
    found = load(code={"url": url})
    assert (found.default, list(found.connections)) == (name, [name])


def test_a_relative_sqlite_path_is_resolved_next_to_the_configuration(write, tmp_path, monkeypatch):
    path = write('[connections.a]\nurl = "sqlite:///jobs.db"\n[failed]\ndatabase = "sqlite:///old/shop.db?timeout=3"\n')
    monkeypatch.chdir("/")
    found = load(path)
    assert found.connection("a").url == f"sqlite:///{path.parent.resolve()}/jobs.db"
    assert found.failed.database == f"sqlite:///{path.parent.resolve()}/old/shop.db?timeout=3"
    assert load(path, environ={"QD_A_URL": "sqlite:////var/jobs.db"}).connection("a").url == "sqlite:////var/jobs.db"


def test_a_driver_that_does_not_fit_the_url_is_refused(write):
    write('[connections.redis]\ndriver = "sqs"\nurl = "mysql://u:secret@h/shop"\n')
    assert refused() == ("qd.toml:2: driver 'sqs' does not match a url of kind 'mysql:' (it takes sqs)")


def test_an_unknown_key_of_a_driver_is_refused_with_the_known_ones(write):
    write('[connections.redis]\ndriver = "Redis"\n')
    assert "unknown driver 'Redis' (did you mean 'redis'?) (known: redis, database, beanstalkd, " in refused()


def test_a_lease_of_zero_is_refused(write):
    write("[connections.redis]\nretry_after = 0\n")
    assert refused() == "retry_after in qd.toml:2 [connections.redis]: 0 is too small (at least 1)"
    assert "QD_REDIS_RETRY_AFTER: 0" in refused(write(""), environ={"QD_REDIS_RETRY_AFTER": "0"})


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[worker]\ntimout = 5\n", "unknown key 'timout' in qd.toml:2 [worker] (did you mean 'timeout'?)"),
        ("[pools.a]\n\nworkrs = 5\n", "unknown key 'workrs' in qd.toml:3 [pools.a] (did you mean 'workers'?)"),
        ("[qd]\ntimeout = 5\n", "unknown key 'timeout' in qd.toml:2 [qd] (it belongs in [worker] or [pools.NAME])"),
        ("[qd]\nzzz = 5\n", "unknown key 'zzz' in qd.toml:2 [qd] (known: app, imports, env, default, control, max_"),
        ("[qd]\n[wroker]\n", "unknown section [wroker] in qd.toml:2 (did you mean 'worker'?)"),
        ("[zzz]\n", "unknown section [zzz] in qd.toml:1 (known: qd, connections, worker, pools, laravel, failed, s"),
        ('app = "x:y"\n', "key 'app' in qd.toml:1 is in no section (it belongs in [qd])"),
        ('connections = {redis = {urll = "x"}}\n', "unknown key 'urll' in qd.toml:1 [connections.redis]"),
        ('[connections]\nredis = "x"\n', "connections.redis in qd.toml:2 must be a table of keys, written ["),
        ("worker = 5\n", "worker in qd.toml:1 must be a table of keys, written [worker]"),
        ('[worker]\ntimeout = "soon"\n', "timeout in qd.toml:2 [worker]: 'soon' is not a duration"),
        ('[failed]\ndatabase = "oracle://h"\n', "database in qd.toml:2 [failed]: not the url of a database"),
        ('[failed]\ndatabase = "sqlite:///x"\nenabled = false\n', "there are no failed jobs to copy to database"),
        ('[laravel]\ncache_prefix = "x"\n', "[laravel] in qd.toml has no cache_url"),
        ("[worker]\n\ntimeout 5\n", "qd.toml:3:9: Expected '='"),
        ("[failed]\nmax_count = 0\n", "0 is too small (at least 1)"),
        ("[worker]\ntries = 1\n\ntries = 2\n", "qd.toml:4: the key 'tries' is defined twice: remove one of them"),
        ("[worker]\ntries = 1\ntries = 2", "qd.toml:3: the key 'tries' is defined twice: remove one of them"),
        ('[a]\nb = ["x"]\nb = [\n  "y",\n]\n', "qd.toml:3: the key 'b' is defined twice: remove one of them"),
        ('[a]\nb = {url = "x", url = "y"}\n', "qd.toml:2: the key 'url' is defined twice: remove one of them"),
        ("worker = 1\n[worker.a]\n", "qd.toml:2: [worker.a] is defined twice: remove one of them"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_line(text, expected, write):
    write(text)
    assert expected in refused()


def test_a_mistake_in_another_pool_is_found_too(write):
    write('[pools.a]\n[pools.b]\ntries = "many"\n')
    assert "tries in qd.toml:3 [pools.b]: 'many' is not a whole number" in refused(pool="a", flags={"tries": 1})


def test_a_file_is_found_by_flag_then_variable_then_in_the_current_folder(write, folder):
    write("[worker]\ntries = 1\n")
    write("[worker]\ntries = 2\n", "b.toml")
    write("[worker]\ntries = 3\n", "c.toml")
    assert load().work.tries == 1
    assert load(environ={"QD_CONFIG": "b.toml"}).work.tries == 2
    found = load(Path("c.toml"), environ={"QD_CONFIG": "b.toml"})
    assert (found.work.tries, found.file, found.root) == (3, folder / "c.toml", folder)


def test_a_named_file_must_exist(folder):
    assert refused(Path("no.toml")) == "cannot read no.toml: No such file or directory"
    assert "cannot read" in refused(folder)
    (folder / "bad.toml").write_bytes(b"\xff")
    assert refused(Path("bad.toml")) == "bad.toml is not UTF-8 text"


def test_pyproject_is_read_when_there_is_no_qd_toml(write):
    write("""\
        [project]
        name = "shop"
        [tool.other]
        list = [
          ["timeout = 1"],
        ]
        [tool.qd]
        app = "shop:app"
        [tool.qd.worker]
        timeout = 5
        [tool.qd.connections.redis]
        url = "embedded:"
        """, "pyproject.toml")  # fmt: skip
    found = load()
    assert (found.app, found.work.timeout, found.connection().url) == ("shop:app", 5.0, "embedded:")
    assert found.origins["qd.app"] == "pyproject.toml:8"
    assert found.origins["worker.timeout"] == "pyproject.toml:10"
    assert found.connection().url_origin == "pyproject.toml:12"
    write("[worker]\ntimeout = 6\n")
    assert load().work.timeout == 6.0


def test_mistakes_in_pyproject_have_their_line(write):
    write("[project]\n[tool.qd]\napp = 'a:b'\ntimout = 3\n", "pyproject.toml")
    assert "unknown key 'timout' in pyproject.toml:4 [qd]" in refused()
    write("[tool.qd.qd]\napp = 'a:b'\n", "pyproject.toml")
    assert "put the keys of [qd] right below [tool.qd]" in refused()
    write("[tool]\nqd = 3\n", "pyproject.toml")
    assert "written [tool.qd]" in refused()


def test_a_pyproject_without_a_qd_section_is_ignored(write):
    write("[project\nbroken", "pyproject.toml")
    assert load().file is None
    write("[project]\ndependencies = ['qd-worker']\n", "pyproject.toml")
    assert load().file is None
    assert refused(Path("pyproject.toml")) == "no [tool.qd] in pyproject.toml"


def test_line_numbers_are_found_in_any_toml_syntax():
    text = textwrap.dedent('''\
        a.b = 1
        [c]   # [not.this]
        text = """
        d = 5
        [e]
        """
        list = [ "[f]",
          "g = 1" ] # h
        [ "quoted.name" . k ]
        inline = { x = 1, y = { z = 2 } }
        ''')
    assert lines_of(text) == {
        "a": 1, "a.b": 1, "c": 2, "c.text": 3, "c.list": 7, "quoted.name.k": 9, "quoted.name.k.inline": 10,
        "quoted.name.k.inline.x": 10, "quoted.name.k.inline.y": 10, "quoted.name.k.inline.y.z": 10,
    }  # fmt: skip


# --- derived values ----------------------------------------------------------------------------------------------------


def test_once_is_for_one_worker(folder):
    assert load(flags={"once": True, "workers": 8}).work.workers == 1
    assert load(flags={"once": True, "workers": 0}).work.workers == 0


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"SUPERVISOR_ENABLED": "1"}, 1.5),
        ({"NOTIFY_SOCKET": "/run/notify"}, 1.5),
        ({"SYSTEMD_EXEC_PID": str(os.getpid())}, 1.5),
        ({"SYSTEMD_EXEC_PID": str(os.getppid())}, 1.5),
        ({"SYSTEMD_EXEC_PID": "1", "INVOCATION_ID": "a terminal"}, 0.0),
    ],
)
def test_under_a_supervisor_it_stays_up_for_a_minimum_time(environ, seconds, folder):
    assert load(environ=environ).work.min_uptime == seconds
    assert load(environ={**environ, "QD_MIN_UPTIME": "3s"}).work.min_uptime == 3.0


def test_laravel_needs_only_its_cache_url(write):
    write('[laravel]\ncache_url = "redis://h/1"\n')
    assert load().laravel == LaravelSettings(cache_url="redis://h/1", cache_prefix="")


def test_settings_survive_a_round_trip_through_json(write):
    write(
        '[qd]\nimports = ["a", "b"]\n[laravel]\ncache_url = "redis://u:p@h/1"\n[connections.redis]\nurl = "redis://u:p@h/0"\n'
    )
    found = load(flags={"backoff": (1.0, 5.0), "queues": ("a", "b")})
    assert config.from_json(config.to_json(found)) == found
    assert config.from_json(config.to_json(load(environ={"QD_CONFIG": ""}))) == load()


def test_a_password_is_not_in_the_repr(write):
    write('[laravel]\ncache_url = "redis://u:secret@h/1"\n[connections.redis]\nurl = "redis://u:secret@h/0"\n')
    assert "secret" not in repr(load())


def test_unused_variables_are_reported(write):
    write("[connections.redis]\n[connections.reports]\n")
    environ = {"QD_TIMOUT": "5", "QD_REPORTS_URL": "redis://h/0", "QD_OWNER": "x", "QD_TRIES": "1", "PATH": "/bin"}
    assert config.unknown_variables(load(environ=environ), environ) == [
        "QD_TIMOUT in the environment is not used by qd (did you mean 'QD_TIMEOUT'?)"
    ]


def test_importing_the_module_loads_no_library():
    code = "import sys, qd.config; print(*(name for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    dear = {
        "click",
        "msgspec",
        "hiredis",
        "rich",
        "psutil",
        "json",
        "tomllib",
        "datetime",
        "difflib",
        "asyncio",
        "socket",
    }
    assert not dear & set(loaded)


# --- several jobs at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "text"),
    [
        ({"once": True}, "concurrency = 10 cannot be combined with --once, which runs one job at a time"),
        ({"rest": 1.0}, "concurrency = 10 cannot be combined with --rest, which runs one job at a time"),
        ({"workers": 0}, "concurrency = 10 cannot be combined with -w 0, which runs one job at a time"),
        (
            {"workers": 21, "concurrency": 1000},
            "21 workers x concurrency 1000 = 21,000 jobs at once: one `qd work` runs at most 20,000",
        ),
        (
            {"connection": "db"},
            "concurrency = 10 needs Redis or Valkey, but connection 'db' uses the driver 'database'",
        ),
    ],
)
def test_an_impossible_concurrency_is_refused(write, work, text):
    write('[connections.db]\nurl = "sqlite:///x.db"\n')
    found = load()
    check_work(replace(found, work=replace(found.work, workers=1)))
    with pytest.raises(ConfigError, match=re.escape(text)):
        check_work(replace(found, work=replace(found.work, **{"workers": 1, "concurrency": 10, **work})))
