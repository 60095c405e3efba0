"""Facts that are said more than once: each page says what the code, the package and the benchmark say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from qd.cli.checks.servers import OLDEST
from qd.config.settings import SECTIONS
from qd.dashboard import command as dashboard
from qd.drivers.broker import outbox
from qd.jobs import context
from qd.master import watchdog
from qd.options import kinds
from qd.options.tables import PREFETCHED, WORK
from qd.process.exit_codes import Exit
from qd.store import audit
from qd.worker import emitter
from tests.docs.test_reference import ROWS
from tests.support.pages import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "examples").glob("*.md"),
]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
FLAT = {page: re.sub(r"\s*\n\s*", " ", text) for page, text in TEXTS.items()}
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())
MOST_STEPS, MOST_STEP_BYTES = re.findall(
    r"MOST_BYTES, MONTH = (\d+), (\d+)", (ROOT / "daemon/qd/drivers/keyspace/scripts/steps.lua").read_text()
)[0]


def found(pattern: str, *pages: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Page and match -> its groups, in these pages or in all. The lines of a paragraph are one."""
    return {
        (page, match[0]): match.groups()
        for page, text in FLAT.items()
        if not pages or page in pages
        for match in re.finditer(pattern, text)
    }


def wrong(said: dict[tuple[str, str], tuple[str, ...]], *values: str) -> list[tuple[str, str]]:
    assert said, "no page says it: correct the pattern"
    return [where for where, (value, *_) in said.items() if value not in values]


# -- versions of other programs


def test_versions_of_peers_are_those_that_were_measured():
    head = (ROOT / "bench" / "RESULTS.md").read_text().partition("\n## ")[0]
    facts = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", head, re.MULTILINE))
    peers = ("celery", "rq", "arq", "saq", "taskiq", "streaq", "sidekiq", "bullmq")
    said = found(rf"\b((?i:{'|'.join(peers)})) v?(\d+\.\d+(?:\.\d+)?)\b")
    assert len({page for page, _ in said}) >= 1
    assert [
        where for where, (peer, version) in said.items() if not f"{facts[peer.lower()]}.".startswith(f"{version}.")
    ] == []


# -- defaults

UNITS = {
    "s": "s",
    "seconds": "s",
    "min": "m",
    "minutes": "m",
    "m": "m",
    "h": "h",
    "d": "d",
    "days": "d",
    "K": "K",
    "M": "M",
    "G": "G",
}
NAMES = "|".join(
    sorted({name for _, row in ROWS for name in (row.name, row.name.replace("_", "-"))}, key=len, reverse=True)
)
VALUE = r"(\d[\d,.]*) ?(s|seconds|min|minutes|m|h|d|days|K|M|G)?"
SAID = (
    rf"`(?:--)?({NAMES})` \((?:the default is |by default |default )?{VALUE}(?: at most)?\)",
    rf"`(?:--)?({NAMES})`, {VALUE}(?= [|,;)]|[,;).])(?<![\d.,])",
    rf"`(?:--)?({NAMES})`[^`|.;:]{{0,40}} (?:defaults to|is by default|the default is) {VALUE}\b",
)
LARAVELS = ("README.md", "`retry_after`, 90 s")


def is_default(name: str, number: str, unit: str | None) -> bool:
    text = number.replace(",", "") + UNITS.get(unit or "", "")
    for _, row in ROWS:
        if row.name == name.replace("-", "_"):
            try:
                value = row.read(text)
            except ValueError:
                continue
            if value == row.default:
                return True
    return False


def test_a_default_in_brackets_is_that_of_the_option():
    said = {place: groups for pattern in SAID for place, groups in found(pattern).items()}
    said = {place: groups for place, groups in said.items() if place != LARAVELS}
    assert len(said) >= 15
    assert [where for where, (name, number, unit) in said.items() if not is_default(name, number, unit)] == []


def test_the_lease_and_the_grace_of_a_timeout_are_those_of_the_code():
    lease = next(row.shown for section, row in ROWS if row.name == "retry_after").removesuffix("s")
    assert wrong(found(r"`retry_after`(?:, | \()(\d+) s"), lease) in ([], [LARAVELS])
    assert wrong(found(r"(\d+\.\d+) s later"), f"{watchdog.GRACE:g}") == []


# -- limits

FAILED = SECTIONS["failed"]

LIMITS = {
    "a checkpoint": (f"{context.MOST_SAVED >> 10}", r"of at most (\d+) KiB"),
    "an event": (f"{context.MOST_EMITTED >> 10}", r"(?:event: JSON|JSON value|fields take)(?: of)? at most (\d+) kB"),
    "events of a job": (f"{emitter.MOST_EVENTS:,}", r"(?:the|its) last ([\d,]+) events"),
    "bytes of the events of a job": (f"{emitter.MOST_BYTES >> 20}", r"events,? (?:and|at most) (\d+) MB"),
    "durable steps": (f"{int(MOST_STEPS):,}", r"([\d,]+) steps and \d+ MB"),
    "bytes of durable steps": (f"{int(MOST_STEP_BYTES) >> 20}", r"steps and (\d+) MB"),
    "jobs fetched at once": (f"{PREFETCHED}", r"a number up to (\d+) fixes"),
    "jobs sent on at once": (f"{outbox.MOST}", r"is just being sent on from `queues:NAME` and `:delayed`; (\d+) jobs"),
    "bytes of failed jobs": (f"{FAILED['max_bytes'].default >> 20}", r"(\d+) MB (?:of them|a queue)"),
    "days of failed jobs": (f"{FAILED['keep'].default / 86400:g}", r"(?:failed (?:jobs for|ones)|payload for) (\d+) days"),
    "audit events": (f"{audit.MOST:,}", r"how many, JSON; the newest ([\d,]+),"),
    "running jobs of a worker": (f"{int(WORK['concurrency'].at_most):,}", r"asyncio and threads\*\*, up to ([\d,]+);"),
    "the size of a payload": (kinds.size_text(1 << 20), r"`max_payload`(?: of `\[qd\]`)?(?: \(|, )(\d+[KMG])\b"),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_on_a_page_is_that_of_the_code(limit):
    value, pattern = LIMITS[limit]
    assert [where for where, (said,) in found(pattern).items() if said != value] == []


def test_the_pages_state_most_limits():
    """Otherwise a page was reworded: correct the pattern."""
    assert [limit for limit, (_, pattern) in LIMITS.items() if not found(pattern)][3:] == []


# -- drivers

STORES = ("Redis", "Valkey", "PostgreSQL", "MySQL", "MariaDB", "SQLite", "beanstalkd", "SQS")


def test_no_page_denies_a_driver():
    for (page, sentence), _ in found(
        r"[^.]*\b(?:other|others|brokers|databases|connections) than Redis\b[^.]*\."
    ).items():
        assert [store for store in STORES if store not in sentence] == [], (page, sentence)
    only = r"(?i)\b(?:supports?|works? (?:on|with)|needs?) Redis(?: and Valkey)? only\b|only (?:on )?Redis and Valkey\b"
    assert found(only) == {}


def test_the_page_on_django_has_queues_in_a_database():
    page = TEXTS["docs/how-to/django.md"]
    assert [words for words in ("django://default", "qd migrate", "app.transaction") if words not in page] == []


def test_the_readme_names_every_driver():
    head = TEXTS["README.md"].partition("\n## ")[0]
    assert [store for store in STORES if store not in head] == []


# -- versions of Python and of the server


def test_versions_of_python_agree():
    floor = PACKAGE["project"]["requires-python"].removeprefix(">=")
    said = {
        place: groups for place, groups in found(r"Python (3\.\d+)(?:\+| or newer)").items() if "Django" not in place[1]
    }
    said = {
        place: groups for place, groups in said.items() if place[0] != "examples/README.md"
    }  # Django 6 needs a newer one
    assert wrong(said, floor) == []
    tested = [
        each.rpartition(" ")[2] for each in PACKAGE["project"]["classifiers"] if re.search(r"Python :: 3\.\d", each)
    ]
    assert tested == [f"3.{minor}" for minor in range(int(floor[2:]), int(floor[2:]) + len(tested))]
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"Python (3\.\d+) or newer", makefile)[0] == floor
    assert f"sys.version_info < (3, {floor[2:]})" in makefile
    assert [version for version in tested if f"python{version}" not in makefile] == []
    assert PACKAGE["tool"]["ruff"]["target-version"] == "py" + floor.replace(".", "")
    assert PACKAGE["tool"]["mypy"]["python_version"] == floor
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "daemon/qd/cli/templates").iterdir(), *ROOT.glob("Dockerfile*")]
    images = [
        version for path in files if path.is_file() for version in re.findall(r"python:(3\.\d+)", path.read_text())
    ]
    assert set(images) <= {*tested}


def test_the_oldest_redis_is_the_same_everywhere():
    versions = {version for (version,) in found(r"Redis (\d\.\d) or newer").values()}
    assert versions == {".".join(map(str, OLDEST))}


# -- precedence of the configuration

LAYERS = {
    "using": r"\busing\b",
    "declaration": r"@app\.job|\bdeclaration\b",
    "flags": r"\bflags of `?qd work|`qd work` flags",
    "variables": r"\bvariables\b",
    "Qd(...)": r"\bQd\(\.\.\.\)",
    "file": r"\[worker\]|\bthe file\b|`qd\.toml`",
}


def order(text: str) -> list[str]:
    at = {layer: match.start() for layer, pattern in LAYERS.items() if (match := re.search(pattern, text))}
    return sorted(at, key=lambda layer: at[layer])


def test_the_order_of_configuration_layers_is_the_same_everywhere():
    reference = TEXTS["docs/reference/configuration.md"]
    table = reference.partition("the first source that has it wins:")[2].partition("\n\n|")[2].partition("\n\n")[0]
    assert order(table) == [*LAYERS]
    (sentence,) = found(
        r"Precedence, highest first:.*?\.(?= )",
        "docs/reference/job-options.md",
    )
    comment = next(line for line in (ROOT / "conf/qd.toml").read_text().splitlines() if "recedence" in line)
    for text in (sentence[1], comment):
        layers = order(text)
        assert {"flags", "variables", "file"} <= {*layers}
        assert layers == [layer for layer in LAYERS if layer in layers], text


# -- ports and exit codes


def test_the_port_of_the_dashboard_and_of_metrics_is_the_same_everywhere():
    port = dashboard.LISTEN.rpartition(":")[2]
    said = found(r"(?:dashboard|proxy_pass|--listen|ssh -L)[^`\n|]{0,60}?(?:127\.0\.0\.1|0\.0\.0\.0|localhost):(\d+)")
    assert wrong(said, port, "9600", "8000") == []  # 8000: the site beside it
    metrics = found(r"(?:qd metrics --listen [\w.]+|qd-metrics|targets: \[\"127\.0\.0\.1):(\d+)")
    assert wrong(metrics, "9600") == []


def test_pages_name_only_exit_codes_that_there_are():
    known = {str(int(code)) for code in Exit} | {"127", "128", "137", "143"}  # of a shell
    assert wrong(found(r"\bexit(?:s|ed)?(?: codes?)?(?: with)?(?: code)? (\d+)\b"), *known) == []


def test_the_tables_of_exit_codes_are_complete():
    def codes(page: str, heading: str) -> set[int]:
        table = TEXTS[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}

    signals = "docs/reference/signals-and-exit-codes.md"
    work = {Exit.OK, Exit.BUG, Exit.USAGE, Exit.IMPORT, Exit.MEMORY, Exit.CONFIG}
    assert codes(signals, "Exit codes of `qd work`") == work
    interrupted = 130
    others = {Exit.OK, Exit.BUG, Exit.USAGE, Exit.UNAVAILABLE, Exit.CONFIG, interrupted}
    assert codes("docs/reference/commands.md", "Exit codes") == others
    own = TEXTS[signals].partition("Codes of workers in the log:")[2].partition("\n")[0]
    said = {int(code) for code in re.findall(r"\b(\d+) [a-z]", own)}
    assert said >= {Exit.MEMORY, Exit.LIMIT, Exit.RAISED, Exit.RECYCLE}


@pytest.mark.parametrize(("key", "value"), [("SuccessExitStatus", "12"), ("RestartPreventExitStatus", "2 78")])
def test_units_treat_exit_codes_alike(key, value):
    files = [*PAGES, ROOT / "supervisor/qd@.service", ROOT / "daemon/qd/cli/templates/systemd.service"]
    said = {str(path.relative_to(ROOT)): re.findall(rf"{key}=([\d ]*\d)", Path(path).read_text()) for path in files}
    assert said["supervisor/qd@.service"] == [value]
    assert {each for values in said.values() for each in values} == {value}
