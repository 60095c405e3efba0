"""`qd config` and `qd init` on the command line."""

import configparser
import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from qd.cli.main import command
from qd.store import failed_jobs_table
from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
[connections.redis]
url = "redis://user:secret@localhost:6379/0"
[worker]
timeout = "2m"
[pools.mail]
queues = ["mail"]
stop_timeout = "5m"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    here = tmp_path / "My Shop"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("os.environ", {"PWD": str(here), "HOME": "/home/ada", "USER": "ada"})
    return here


def qd(*words):
    return CliRunner().invoke(command, words, prog_name="qd")


def line(*words):
    """Exit code and error message of a command that fails with one line."""
    done = qd(*words)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.exit_code, done.stderr.strip()


# --- qd config -------------------------------------------------------------------------------------------------------


def shown(*words):
    rows = [row.split("  ") for row in qd("config", "show", *words).stdout.splitlines() if "." in row]
    return {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}


def test_show_prints_each_value_with_its_origin(folder, monkeypatch):
    (folder / "qd.toml").write_text(FILE)
    monkeypatch.setitem(os.environ, "QD_TRIES", "3")
    found = shown()
    assert found["worker.timeout"] == ["2m", "qd.toml:4"]
    assert found["worker.tries"] == ["3", "environment QD_TRIES"]
    assert found["worker.memory"] == ["128M", "built in"]
    assert found["connections.redis.url"] == ["redis://user:***@localhost:6379/0", "qd.toml:2"]
    assert found["worker.queues"] == ["default", "built in, and every queue that the app declares"]
    assert shown("--pool", "mail")["worker.queues"] == ["mail", "qd.toml:6"]
    assert shown("--pool", "mail")["worker.pool"] == ["mail", "flag --pool"]


def test_show_changed_prints_only_what_differs_from_the_defaults(folder, monkeypatch):
    users = f"ana:read:scrypt${'0' * 32}${'0' * 128}"
    (folder / "hook").write_text("https://hooks.example.com/T0\n")
    text = """\
[pools.web]
tries = 1
workers = "auto"
[alerts]
webhook_file = "hook"
[alerts.queues.mail]
max_ready = 5
[dashboard]
"""
    (folder / "qd.toml").write_text(f'{FILE}{text}users = ["{users}"]\n')
    monkeypatch.setitem(os.environ, "QD_MAX_JOBS", "100")
    rows = shown("--changed", "--pool", "web")
    assert {name: row for name, row in rows.items() if name != "file"} == {
        "connections.redis.url": ["redis://user:***@localhost:6379/0", "qd.toml:2"],
        "worker.pool": ["web", "flag --pool"],
        "worker.workers": [str(os.cpu_count()), "qd.toml:10"],
        "worker.timeout": ["2m", "qd.toml:4"],
        "worker.max_jobs": ["100", "environment QD_MAX_JOBS"],
        "alerts.webhook": ["***", f"qd.toml:12, file {folder}/hook"],
        "alerts.queues.mail.max_ready": ["5", "qd.toml:14"],
        "dashboard.users": ["ana:read:***", "qd.toml:16"],
    }
    found = json.loads(qd("config", "show", "--changed", "--json").stdout)["values"]
    assert found["worker.max_jobs"] == {"value": 100, "origin": "environment QD_MAX_JOBS"}
    assert "worker.tries" not in found


def test_schema_prints_the_schema_of_the_file(folder):
    assert json.loads(qd("config", "schema").stdout) == json.loads((ROOT / "conf" / "qd.schema.json").read_text())


def test_show_as_json_for_programs(folder):
    (folder / "qd.toml").write_text(FILE)
    found = json.loads(qd("config", "show", "--json").stdout)
    assert (found["file"], found["root"]) == (str(folder / "qd.toml"), str(folder))
    assert found["values"]["worker.timeout"] == {"value": 120.0, "origin": "qd.toml:4"}
    assert ":secret@" not in json.dumps(found)


def test_show_prints_the_weights_of_queues(folder):
    (folder / "qd.toml").write_text('[worker]\nqueues = ["high=5", "low=1"]\n')
    assert shown()["worker.queues"] == ["high=5,low=1", "qd.toml:2"]
    assert json.loads(qd("config", "show", "--json").stdout)["values"]["worker.queues"]["value"] == ["high=5", "low=1"]


def test_show_needs_neither_file_nor_url(folder):
    assert shown()["connections.redis.url"] == ["-", "built in"]


def test_show_prints_values_set_in_code(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n')
    (folder / "shop.py").write_text('from qd import Qd\napp = Qd("redis://code/3")\n')
    assert re.search(r"redis://code/3 +Qd\(\.\.\.\)", real("config", "show").stdout)
    assert real("config", "check").returncode == 0
    (folder / "shop.py").write_text("1 / 0")
    done = real("config", "show")
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (0, True)
    assert "worker.timeout" in done.stdout


def real(*words, **environ):
    env = {"PYTHONPATH": str(ROOT / "daemon"), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    return warm.run([sys.executable, "-m", "qd", *words], env=env, capture_output=True, text=True, check=False)


def test_check_prints_ok(folder):
    (folder / "qd.toml").write_text(FILE)
    done = qd("config", "check")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{folder}/qd.toml: ok; no app is named\n", "")
    facts = {"ok": True, "file": f"{folder}/qd.toml", "app": None, "app_imported": False, "notes": []}
    assert json.loads(qd("config", "check", "--json").stdout) == facts


def test_check_reports_whether_the_app_was_imported(folder):
    (folder / "jobs.py").write_text("app = 1 / 0")
    output = (
        f"{folder}/qd.toml: ok; the app jobs:app was not imported, "
        "`qd doctor` does that, and checks the entries of its schedule\n"
    )
    (folder / "qd.toml").write_text('[qd]\napp = "jobs:app"\n[connections.redis]\nurl = "redis://h/0"\n')
    assert (real("config", "check").returncode, real("config", "check").stdout) == (0, output)
    assert (
        output.replace(str(folder), "/srv/shop") in (ROOT / "docs" / "reference" / "cli" / "qd-config.md").read_text()
    )
    (folder / "qd.toml").write_text('[qd]\napp = "jobs:app"\n')  # the url is set in Qd(...)
    assert (real("config", "check").returncode, real("config", "check").stdout) == (78, "")
    (folder / "jobs.py").write_text("from qd import Qd\napp = Qd('redis://h/0')\n")
    assert real("config", "check").stdout == f"{folder}/qd.toml: ok, and the app jobs:app imports\n"
    assert json.loads(real("config", "check", "--json").stdout)["app_imported"] is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[worker]\ntimout = 5\n", "unknown key 'timout' in qd.toml:2 [worker] (did you mean 'timeout'?)"),
        ("[pools.a]\ntries = -1\n", "tries in qd.toml:2 [pools.a]: -1 is not a whole number"),
        (FILE + '[pools.a]\nconnection = "x"\n', "unknown connection 'x' (qd.toml:9) (known: redis)"),
        (FILE + '[pools.a]\nconnection = "b"\n[connections.b]\n', "connection 'b' has no url: set QD_B_URL"),
        ("", "connection 'redis' has no url: set QD_REDIS_URL"),
        (
            FILE + "[dashboard]\nusers = ['ana:admin:x']\n",
            "users in qd.toml:9 [dashboard]: user 1 is not NAME:LEVEL:HASH",
        ),
        (FILE + "[dashboard]\nprefix = 'qd'\n", "prefix in qd.toml:9 [dashboard]: 'qd' is not the beginning of a path"),
        ("[connections.redis]\nurl_file = 'url'\n", "qd.toml:2: cannot read url from "),
        (
            '[connections.db]\nurl = "sqlite:///x.db"\n[worker]\nconcurrency = 10\n',
            "concurrency = 10 needs Redis or Valkey, but connection 'db' uses the driver 'database'",
        ),
    ],
)
def test_check_prints_one_error_line_and_exits_with_78(text, expected, folder):
    (folder / "qd.toml").write_text(text)
    code, output = line("config", "check")
    assert code == 78
    assert output.startswith("qd: ")
    assert expected in output


def test_check_names_the_missing_library_of_the_table_of_failed_jobs(folder, monkeypatch):
    (folder / "qd.toml").write_text(FILE + '[failed]\ndatabase = "sqlite:///shop.db"\n')
    assert qd("config", "check").exit_code == 0
    monkeypatch.setattr(failed_jobs_table, "find_spec", lambda name: None)
    code, output = line("config", "check")
    assert (code, output.startswith("qd: [failed] database needs SQLAlchemy: pip install")) == (78, True), output
    assert not (folder / "shop.db").exists()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:99999/0", "needs a number as port and as database (Port out of range 0-65535)"),
        ("redis://[::1", "not a Redis url (Invalid IPv6 URL)"),
        ("redis://h/0?ssl=1", "unknown option 'ssl' in a Redis url"),
        ("rediss://h/0?ssl_ca_certs=/nope", "cannot be read (ssl_ca_certs=/nope): no such file"),
    ],
)
def test_check_and_work_reject_an_invalid_url(url, expected, folder):
    (folder / "qd.toml").write_text(f'[qd]\napp = "shop:app"\n[connections.redis]\nurl = "{url}"\n')
    (folder / "shop.py").write_text("from qd import Qd\napp = Qd()\n")
    code, output = line("config", "check")
    assert (code, expected in output) == (78, True), output
    assert output.startswith("qd: url of connection 'redis' (qd.toml:4): ")
    done = real("work", "-w", "1")
    assert (done.returncode, expected in done.stderr, "Traceback" in done.stderr) == (78, True, False), done.stderr


def test_a_configuration_path_that_is_not_a_file_is_an_error(folder):
    (folder / "qd.toml").mkdir()
    expected = (78, "qd: ./qd.toml is a folder: remove it, or name a file with --config")
    assert line("status") == expected
    (folder / "qd.toml").rmdir()
    os.mkfifo(folder / "qd.toml")
    assert line("work") == (expected[0], expected[1].replace("a folder", "a pipe"))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "[qd]\na." + ".".join("b" * 3000) + " = 1"])
def test_a_file_with_too_many_levels_is_rejected_in_one_line(text, folder):
    (folder / "qd.toml").write_text(text)
    assert line("config", "check") == (78, "qd: qd.toml: tables or lists are nested too deep")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("cron = '61 * * * *'\nshell = 'ls'", "cron expression '61 * * * *'"),
        ("cron = '0 0 31 2 *'\nshell = 'ls'", "never comes"),
        ("every = 60\nqd = 'faled forget'", "unknown command 'faled' of qd (did you mean 'failed'?)"),
        ("every = 60\nqd = 'failed froget'", "unknown command 'froget' of qd (did you mean 'forget'?)"),
        ("every = 60\nqd = 'failed forget --older 30d'", "no such option"),
        ("every = 60\nqd = 'failed'", "qd failed names no command"),
        ("every = 60", "nothing says what it runs"),
    ],
)
def test_check_validates_the_schedule_entries_in_the_file(keys, expected, folder):
    (folder / "qd.toml").write_text(FILE + f"[schedule.entries.nightly]\n{keys}\n")
    code, output = line("config", "check")
    assert (code, expected.lower() in output.lower()) == (78, True), output
    assert "qd.toml:8 is wrong: [schedule.entries.nightly] " in output


def test_check_accepts_valid_entries_without_importing_their_jobs(folder):
    entries = ["shell = 'ls -l | wc'", "qd = 'failed forget --older-than 30d'", "job = 'a.b'", "call = 'a:b'"]
    text = "".join(f"[schedule.entries.e{n}]\nevery = 60\n{keys}\n" for n, keys in enumerate(entries))
    (folder / "qd.toml").write_text(FILE + text)
    assert (done := qd("config", "check")).exit_code == 0, done.output


def test_check_validates_the_schedule_entries_of_an_imported_app(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n')  # the url is set in Qd(...)
    head = "from qd import Qd\napp = Qd('redis://h/0')\n"
    for declared, expected in [
        ("app.schedule(lambda: None).daily()", "has no name"),
        ("app.schedule.qd('failed list --nosuch', cron='@daily')", "qd failed list --nosuch: No such option"),
        ("app.schedule(print, cron='0 0 31 2 *')", "never comes"),
        (
            "app.schedule(print).daily().between('23:00', '23:30')",
            "never comes: 0 0 * * * is always outside of 23:00-23:30",
        ),
    ]:
        (folder / "shop.py").write_text(f"{head}{declared}\n")
        done = real("config", "check")
        assert (done.returncode, expected in done.stderr, "shop.py:3" in done.stderr) == (78, True, True), done.stderr
        assert done.stderr.count("\n") == 1


def test_show_prints_a_growing_backoff_by_its_name(folder):
    (folder / "qd.toml").write_text("[worker]\nbackoff = 'exponential'\njitter = 0.25\n")
    values = json.loads(qd("config", "show", "--json").stdout)["values"]
    assert (values["worker.backoff"]["value"], values["worker.jitter"]["value"]) == ("exponential", 0.25)
    assert re.search(r"worker.backoff +exponential ", qd("config", "show").stdout)


def test_errors_name_the_folder_without_a_configuration_file(folder):
    where = f"(no qd.toml in {folder}, the current folder: change to the folder of qd.toml, or set QD_CONFIG)"
    for words in (("declared",), ("work",), ("schedule", "list")):
        done = real(*words, QD_REDIS_URL="redis://h/0")
        assert (done.returncode, where in done.stderr) == (78, True), done.stderr
    assert where in real("status").stderr
    (folder / "qd.toml").write_text("[qd]\n")
    assert "current folder" not in real("status").stderr + real("declared").stderr


def test_check_names_files_with_secrets_that_others_can_read(folder):
    (folder / "url").write_text("redis://user:secret@localhost:6379/0\n")
    (folder / "url").chmod(0o644)
    (folder / "qd.toml").write_text("[connections.redis]\nurl_file = 'url'\n")
    done = qd("config", "check")
    assert done.exit_code == 0
    assert f"{folder}/url can be read by every user (mode 0644)" in done.stderr
    (folder / "url").chmod(0o600)
    assert qd("config", "check").stderr == ""


def test_check_names_unknown_environment_variables(folder, monkeypatch):
    (folder / "qd.toml").write_text(FILE)
    monkeypatch.setitem(os.environ, "QD_TIMOUT", "3")
    done = qd("config", "check")
    assert done.exit_code == 0
    assert "QD_TIMOUT in the environment is not used by qd (did you mean 'QD_TIMEOUT'?)" in done.stderr


def test_a_missing_file_exits_with_78(folder):
    assert line("config", "show", "--config", "no.toml") == (78, "qd: cannot read no.toml: No such file or directory")
    assert line("--config", "no.toml", "config", "check")[0] == 78


# --- qd init ---------------------------------------------------------------------------------------------------------


def test_init_writes_a_project_that_works_without_edits(folder):
    done = qd("init")
    assert done.exit_code == 0
    assert sorted(os.listdir(folder)) == ["jobs.py", "qd.schema.json", "qd.toml"]
    table = tomllib.loads((folder / "qd.toml").read_text())
    assert table["connections"]["redis"]["url"] == "embedded:"
    assert "jobs:app" in real("config", "show").stdout
    assert real("config", "check").returncode == 0
    ran = real("run", "mail.welcome", "to=ada@example.org")
    assert (ran.returncode, ran.stdout.splitlines()[:1]) == (0, ["to ada@example.org: Hello (attempt 1)"]), ran.stderr


def test_commented_out_settings_of_init_are_valid(folder):
    qd("init")
    text = (folder / "qd.toml").read_text()
    (folder / "qd.toml").write_text(re.sub(r"^# (?=\[|\w+ =)", "", text, flags=re.MULTILINE))
    assert qd("config", "check").exit_code == 0
    assert shown("--pool", "mail")["worker.workers"][0] == "2"
    assert shown()["worker.backoff"][0] == "1s,5s,30s"


@pytest.mark.parametrize("name", ["qd.toml", "jobs.py", "qd.schema.json"])
def test_init_overwrites_nothing(name, folder):
    (folder / name).write_text("mine")
    code, output = line("init")
    assert (code, f"{name} already exists; nothing was written; run `qd init` in an empty folder" in output) == (
        2,
        True,
    )
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(name, "mine")]


def test_init_detects_tool_qd_in_pyproject(folder):
    (folder / "pyproject.toml").write_text("[tool.qd]\n")
    code, output = line("init")
    assert (code, "pyproject.toml has [tool.qd] already" in output) == (2, True)
    assert os.listdir(folder) == ["pyproject.toml"]


def test_init_for_an_unknown_supervisor_is_wrong_usage(folder):
    assert line("init", "launchd")[0] == 2


def settings(text, section):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return dict(parser[section])


PATHS = {"command", "directory", "user", "environment"}
PATHS |= {"User", "WorkingDirectory", "Environment", "ExecStart", "EnvironmentFile"}


def test_the_generated_supervisord_file_equals_the_shipped_one_except_for_paths(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n')
    mine = settings(qd("init", "supervisord").stdout, "program:qd")
    ours = settings((ROOT / "supervisor" / "qd.conf").read_text(), "program:qd")
    assert {k: v for k, v in mine.items() if k not in PATHS} == {k: v for k, v in ours.items() if k not in PATHS}
    words = shlex.split(mine["command"])
    assert words[0].startswith("/")
    assert words[-3:] == ["work", "--config", f"{folder}/qd.toml"]
    assert (mine["directory"], mine["user"]) == (str(folder), "ada")
    assert f'USER="ada",PWD="{folder}"' in mine["environment"]


def test_the_supervisord_file_names_a_place_for_secrets(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n' + FILE)
    printed = qd("init", "supervisord").stdout
    assert "For secrets such as QD_REDIS_URL add\n" in printed
    assert '; QD_ENV_FILE="/etc/qd/qd-mail.env" to this line: a file of NAME=value lines that ada can read' in printed


def test_the_generated_systemd_unit_equals_the_shipped_one_except_for_paths(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n' + FILE)
    printed = qd("init", "systemd").stdout
    shipped = (ROOT / "supervisor" / "qd@.service").read_text()
    mine, ours = settings(printed, "Service"), settings(shipped, "Service")
    differ = {key for key in mine.keys() | ours.keys() if mine.get(key) != ours.get(key)} - PATHS
    assert differ <= {
        "TimeoutStopSec",
        "ProtectHome",
        "PrivateTmp",
    }  # 5m + 10; the others depend on this test's folder
    assert mine["TimeoutStopSec"] == "310"
    assert mine["ExecStart"].endswith(f'work --config "{folder}/qd.toml" --pool %i')
    assert (mine["WorkingDirectory"], mine["Environment"]) == (str(folder), f'"PWD={folder}"')
    assert settings(printed, "Unit")["StartLimitIntervalSec"] == "0"


def test_the_unit_is_enabled_for_a_pool_that_systemd_can_name(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n[pools."my pool;x"]\n[pools.mail]\n')
    done = qd("init", "systemd")
    assert "systemctl enable --now qd@mail\n" in done.stdout
    assert "pool 'my pool;x' cannot be started as qd@NAME" in done.stderr


def test_without_pools_the_unit_is_not_a_template_and_allows_writes_of_embedded(folder):
    (folder / "qd.toml").write_text('[connections.redis]\nurl = "embedded:"\n')
    done = qd("init", "systemd", "--app", "shop:app")
    mine = settings(done.stdout, "Service")
    assert "%i" not in done.stdout
    assert mine["ExecStart"].endswith("--app shop:app")
    assert mine["ReadWritePaths"] == f'"{folder}"'
    assert "set QD_REDIS_URL for a shared one" in done.stderr


def test_each_pool_is_a_program_with_its_own_stop_timeout(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n' + FILE + "[pools.web]\nstop_timeout = 0\n")
    printed = qd("init", "supervisord").stdout
    mail, web = settings(printed, "program:qd-mail"), settings(printed, "program:qd-web")
    assert mail["command"].endswith("--pool mail")
    assert (mail["stopwaitsecs"], web["stopwaitsecs"]) == ("310", "86400")


def test_the_dockerfile_runs_qd_directly_in_exec_form(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n')
    (folder / "requirements.txt").write_text("")
    printed = qd("init", "docker").stdout
    assert 'CMD ["qd", "work"]\n' in printed
    assert f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim" in printed
    assert "-r requirements.txt" in printed
    assert "docker build -t my-shop ." in printed
    assert "--find-links . " in printed
    assert "# qd-worker is not on PyPI yet. Build its wheel into this folder first: pip wheel" in printed
    probe = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", printed, re.MULTILINE)
    assert probe
    assert json.loads(probe[1]) == ["qd", "health", "--live"]


def test_generated_files_install_what_the_connections_need(folder):
    (folder / "qd.toml").write_text(
        '[qd]\napp = "shop:app"\ndefault = "main"\ncontrol = "control"\n[connections.main]\nurl = "sqs://eu-west-1"\n'
        '[connections.control]\nurl = "sqlite:///control.sqlite"\n[connections.unused]\nurl = "beanstalkd://h"\n'
    )
    image = qd("init", "docker").stdout
    assert "RUN pip install --no-cache-dir --find-links . 'qd-worker[dashboard,database,sqs]==" in image
    assert "-e QD_MAIN_URL=sqs://... my-shop" in image
    assert "{name: QD_MAIN_URL_FILE, value: /run/secrets/qd/main-url}" in qd("init", "k8s").stdout
    assert f'ReadWritePaths="{folder}"' in qd("init", "systemd").stdout


def test_kubernetes_gets_a_deployment_for_each_pool(folder):
    (folder / "qd.toml").write_text('[qd]\napp = "shop:app"\n' + FILE + "[pools.web]\n")
    first, second = qd("init", "k8s").stdout.split("---\n")
    assert "name: my-shop-qd-mail" in first
    assert "terminationGracePeriodSeconds: 310" in first
    assert 'command: ["qd", "work", "--pool", "mail"]' in first
    assert 'livenessProbe:\n            exec: {command: ["qd", "health", "--live"]}\n' in first
    assert "terminationGracePeriodSeconds: 35" in second
    assert "{name: QD_REDIS_URL_FILE, value: /run/secrets/qd/redis-url}" in second


def test_init_warns_about_a_missing_app_on_stderr(folder):
    done = qd("init", "supervisord")
    assert done.exit_code == 0
    assert "no app is named" in done.stderr
    assert "[program:qd]" in done.stdout
