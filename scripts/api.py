"""Write docs/reference/api/*.md from the docstrings and signatures of the public API: `make reference`.

The pages are committed, because they are read on GitHub and offline too; a test compares them with the code. The code is
not imported: griffe reads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import griffe
from griffe import Attribute, Class, DocstringSectionKind, Function, Parameter, ParameterKind

import qd

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference" / "api"
WIDTH = 100


class Page(NamedTuple):
    """A page: its title, its first paragraph, and the objects it describes: the path in the code, the members left out."""

    title: str
    about: str
    objects: tuple[str, ...]
    source: str = "qd"  # the module to import from
    hidden: frozenset[str] = frozenset()


PAGES = {
    "api-app": Page(
        "Qd",
        "The application object. Declare jobs with `@app.job` ([options](api-jobs.md#options)), entries of the schedule "
        "with `app.schedule` ([Schedule](api-schedule.md)), and middleware with `@app.middleware`. Guide: "
        "[Jobs](../../how-to/jobs.md).",
        ("qd.app.Qd",),
        hidden=frozenset({"imports", "url", "loading", "call", "settings", "job"}),
    ),
    "api-jobs": Page(
        "Job functions, job classes and calls",
        "`@app.job(...)` returns a `JobFunction` for a function and the class itself for a class derived from `Job`. Guide: "
        "[Jobs](../../how-to/jobs.md).",
        ("qd.jobs.job.JobFunction", "qd.jobs.job.Job", "qd.jobs.job.Call", "qd.jobs.job.Link", "qd.jobs.plan.Options",
         "qd.jobs.plan.SendOptions", "qd.options.kinds.Backoff", "qd.jobs.job.NeverSent"),
    ),
    "api-handles": Page(
        "Handles",
        "What `dispatch()` returns: the status, result, progress and events of a job that was sent. Guide: "
        "[Results](../../how-to/results.md).",
        ("qd.jobs.plan.Handle", "qd.jobs.plan.EventStream", "qd.drivers.types.JobEvent"),
    ),
    "api-current-job": Page(
        "The running job",
        "What the code of a job can find out and do about its own run. Guide: [Long jobs](../../how-to/long-jobs.md).",
        ("qd.jobs.context.current_job", "qd.jobs.context.RunningJob", "qd.jobs.policy.Retry", "qd.jobs.policy.Fail"),
        hidden=frozenset({"backing", "local", "declared", "relations", "data", "current_data", "prepared", "take_decision",
                          "outcome", "unfreed"}),
    ),
    "api-composites": Page(
        "Chains and batches",
        "What `app.chain(...)` and `app.batch(...)` return. Guides: [Chains](../../how-to/chains.md), "
        "[Batches](../../how-to/batches.md).",
        ("qd.dispatch.composite.Chain", "qd.dispatch.composite.BatchCall", "qd.dispatch.composite.Batch",
         "qd.drivers.types.BatchState"),
    ),
    "api-queues": Page(
        "Queues and keys",
        "A queue by its name, and a delayed job by its key. Guide: [Unique jobs](../../how-to/unique.md).",
        ("qd.dispatch.dispatcher.Queue", "qd.dispatch.dispatcher.Keyed"),
    ),
    "api-locks": Page(
        "Locks and limiters",
        "What `app.lock(...)` and `app.limiter(...)` return. Guide: [Locks and limits](../../how-to/locks.md).",
        ("qd.locks.lock.Lock", "qd.locks.limiter.Limiter"),
    ),
    "api-schedule": Page(
        "Schedule",
        "`app.schedule(...)` declares an entry and returns a `Scheduled`, whose methods set when and how it runs. Guide: "
        "[Schedule](../../how-to/schedule.md).",
        ("qd.schedule.declare.Schedule", "qd.schedule.builder.Scheduled", "qd.schedule.builder.Frequencies"),
        hidden=frozenset({"entries", "here"}),
    ),
    "api-arguments": Page(
        "Arguments",
        "Parameters that the worker fills in, and objects that travel as model and key. Guide: "
        "[Jobs](../../how-to/jobs.md).",
        ("qd.arguments.injection.provided", "qd.arguments.injection.Provided", "qd.arguments.injection.Serializer",
         "qd.arguments.injection.Serialized"),
    ),
    "api-middleware": Page(
        "Middleware classes",
        "The middleware that qd brings. A middleware of your own is a function `(job, call_next)`. Guide: "
        "[Middleware](../../how-to/middleware.md).",
        ("qd.middleware.WithoutOverlapping", "qd.middleware.ConcurrencyLimit", "qd.middleware.RateLimited",
         "qd.middleware.ThrottlesExceptions", "qd.middleware.SkipIf", "qd.middleware.SkipIfBatchCancelled",
         "qd.middleware.FailOnException"),
        source="qd.middleware",
        hidden=frozenset({"limit_in"}),
    ),
    "api-events": Page(
        "Event classes",
        "The events that listeners receive, `@app.on(JobFailed)`. Guide: [Events](../events.md).",
        ("qd.events.*",),
        source="qd.events",
        hidden=frozenset({"Listeners", "check_event"}),
    ),
    "api-errors": Page(
        "Errors",
        "Every error that qd raises derives from `QdError`. The exceptions that end a job from outside derive from "
        "`BaseException`, so that `except Exception` does not swallow them. What to do about each: [Errors](../errors.md).",
        ("qd.errors.*",),
        source="qd.errors",
        hidden=frozenset({"server"}),
    ),
    "api-testing": Page(
        "Testing classes and fixtures",
        "`app.fake()` and `app.inline()` return a `Fake`. The fixtures come with the pytest plugin that qd installs. Guide: "
        "[Testing](../../how-to/testing.md).",
        ("qd.testing.Fake", "qd.testing.Dispatched", "qd.testing.Pushed", "qd.testing.Chained", "qd.testing.Batched",
         "qd.pytest_plugin.qd_app", "qd.pytest_plugin.qd_fake", "qd.pytest_plugin.qd_inline", "qd.pytest_plugin.qd_server",
         "qd.pytest_plugin.qd_worker", "qd.pytest_plugin.worker.Worker"),
        source="qd.testing",
    ),
    "api-contrib": Page(
        "Frameworks and tools",
        "Optional modules; each needs the package that it is named after. Guides: [FastAPI](../../how-to/fastapi.md), "
        "[Flask](../../how-to/flask.md), [Django](../../how-to/django.md), [SQLAlchemy](../../how-to/sqlalchemy.md).",
        ("qd.contrib.fastapi.lifespan", "qd.contrib.fastapi.get_qd", "qd.contrib.flask.QdFlask",
         "qd.contrib.django.project.app", "qd.contrib.django.project.install", "qd.contrib.django.tasks.QdBackend",
         "qd.contrib.sqlalchemy.install", "qd.contrib.sse.sse", "qd.contrib.sentry.instrument",
         "qd.contrib.opentelemetry.instrument"),
        source="",
        hidden=frozenset({"validate_task", "job_of", "task_named", "sending"}),
    ),
}  # fmt: skip


class Reference:
    """All pages, from the code as griffe reads it."""

    def __init__(self) -> None:
        self.loader = griffe.GriffeLoader(
            search_paths=[ROOT / "daemon"], docstring_parser="google", allow_inspection=False
        )
        self.loader.load("qd")
        self.anchors = dict[str, str]()  # public name -> page.md#anchor
        for name, page in PAGES.items():
            for each in self.objects(page):
                self.anchors.setdefault(each.name, f"{name}.md#{each.name.lower()}")

    def objects(self, page: Page) -> Iterator[Any]:
        for path in page.objects:
            found = self.loader.modules_collection[path.removesuffix(".*")]
            for each in found.members.values() if path.endswith(".*") else [found]:
                public = not each.is_alias and each.is_class and not each.name.startswith("_")
                if not path.endswith(".*") or (public and each.docstring and each.name not in page.hidden):
                    yield each

    def pages(self) -> Iterator[tuple[str, str]]:
        """File name and text of each page."""
        rows = "".join(
            f"| [{page.title}]({name}.md) | {', '.join(f'`{each.name}`' for each in self.objects(page))} |\n"
            for name, page in PAGES.items()
        )
        note = "<!-- Written by `make reference` from the docstrings: change those. -->\n\n"
        yield (
            "api.md",
            f"# Python API\n\n{note}Every public class and function, with its arguments, results and errors. Durations are "
            "seconds or a `timedelta`.\n\n"
            "To learn how to use them, start with [Jobs](../../how-to/jobs.md).\n\n"
            f"| page | describes |\n| --- | --- |\n{rows}",
        )
        for name, page in PAGES.items():
            yield f"{name}.md", "".join([f"# {page.title}\n\n{note}{page.about}\n", *self.sections(page)])

    def sections(self, page: Page) -> Iterator[str]:
        for each in self.objects(page):
            source = page.source or each.module.path.removesuffix(".project")
            yield f"\n## {each.name if page.source else f'{source}.{each.name}'}\n"
            if each.path.startswith("qd.pytest_plugin"):
                yield "\nA pytest fixture.\n" if each.is_function else ""
            elif source != "qd" or each.name in dir(qd):
                yield fenced(f"from {source} import {each.name}")
            yield from self.class_(each, page) if each.is_class else self.function(each, fixture="pytest" in each.path)

    def class_(self, each: Class, page: Page) -> Iterator[str]:
        bases = [
            name for base in each.bases if (name := self.linked(str(base))).startswith("[") or str(base) in BUILT_IN
        ]
        if bases:
            yield f"\nDerived from {', '.join(bases)}.\n"
        init = each.members.get("__init__")
        fields = [one for one in self.with_private_bases(each) if is_field(one, page)]
        made = isinstance(init, Function) and (page.title not in RETURNED or each.name in ("Qd", "Retry", "Fail"))
        if made and isinstance(init, Function):
            yield fenced(signature(init, each.name))
        yield from self.docstring(each, page.hidden)
        if isinstance(init, Function) and made:
            yield from self.docstring(init)
        described = {one.name for one in attributes_of(each)}
        rows = [one for one in fields if one.name not in described]
        if rows:
            notes = [comment(one) for one in rows]
            head = "\n| field | type |" + (" |\n| --- | --- | --- |\n" if any(notes) else "\n| --- | --- |\n")
            last = [f" {note} |" if any(notes) else "" for note in notes]
            yield head + "".join(
                f"| `{one.name}` | {cell(annotation(one))} |{end}\n" for one, end in zip(rows, last, strict=True)
            )
        written = [
            one for one in each.members.values() if isinstance(one, Attribute) and str(one.value).startswith("writes(")
        ]
        if written:
            yield "\n| method without arguments | meaning |\n| --- | --- |\n"
            yield from (f"| `.{one.name}()` | {meaning(one)} |\n" for one in written)
        for one in each.members.values():
            called = one.name == "__call__" and one.has_docstring
            if one.name in page.hidden or (one.name.startswith("_") and not called) or one.is_alias:
                continue
            if isinstance(one, Function):
                yield f"\n### {each.name}" + ("()\n" if called else f".{one.name}\n")
                yield from self.function(one)
            elif isinstance(one, Attribute) and "property" in one.labels:
                yield f"\n### {each.name}.{one.name}\n" + fenced(f"{one.name}: {annotation(one)}  # property")
                yield from self.docstring(one)

    def with_private_bases(self, each: Class) -> list[Any]:
        """The members of a class, and of its bases that have no section of their own."""
        found = [one for base in each.resolved_bases if base.name.startswith("_") for one in base.members.values()]
        return [*found, *each.members.values()]

    def function(self, each: Function, *, fixture: bool = False) -> Iterator[str]:
        shown = [] if fixture else list(each.overloads or [])
        # Overloads for each length of a chain differ in types only: the implementation says it shorter.
        if fixture and each.returns is not None:
            value = re.sub(r"^Iterator.(.*).$", r"\1", str(each.returns))
            yield f"\nIts value is a `{value}`.\n"
        elif not fixture:
            yield fenced("\n".join(signature(one) for one in (shown if 0 < len(shown) <= 3 else [each])))
        yield from self.docstring(each)

    # --- docstrings

    def docstring(self, each: Any, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
        if each.docstring is None:
            return
        for section in each.docstring.parse("google", warnings=False):
            kind, value = section.kind, section.value
            if kind is DocstringSectionKind.text:
                yield f"\n{prose(value)}\n"
            elif kind in (DocstringSectionKind.parameters, DocstringSectionKind.attributes):
                title = "Arguments" if kind is DocstringSectionKind.parameters else "Attributes"
                yield f"\n**{title}**\n\n" + "".join(
                    f"- `{one.name}`: {line(one.description)}\n" for one in value if one.name not in hidden
                )
            elif kind is DocstringSectionKind.raises:
                rows = (f"- {self.linked(str(one.annotation))}: {line(one.description)}\n" for one in value)
                yield "\n**Raises**\n\n" + "".join(rows)
            elif kind in (DocstringSectionKind.returns, DocstringSectionKind.yields):
                yield "\n**Returns**\n\n" + " ".join(line(one.description) for one in value) + "\n"
            elif kind is DocstringSectionKind.admonition:
                yield fenced(value.description.strip("`"))
            elif kind is DocstringSectionKind.examples:
                yield from (fenced(text) if "examples" in str(what) else f"\n{text}\n" for what, text in value)
            else:
                raise ValueError(f"{each.path}: a docstring section of kind {kind}")

    def linked(self, name: str) -> str:
        bare = re.sub(r"\[.*", "", name)
        return f"[`{name}`]({self.anchors[bare]})" if bare in self.anchors else f"`{name}`"


BUILT_IN = ("Exception", "BaseException", "TypeError", "ValueError", "TimeoutError", "UserWarning")
QUOTED, DOUBLE = r"'([^'\"]*)'", r'"\1"'

# Pages whose classes programs do not construct, but receive.
RETURNED = frozenset({"Handles", "The running job", "Chains and batches", "Queues and keys", "Locks and limiters",
                      "Schedule", "Job functions, job classes and calls", "Testing classes and fixtures", "Event classes",
                      "Errors"})  # fmt: skip


def is_field(one: Any, page: Page) -> bool:
    if not isinstance(one, Attribute) or one.is_alias or one.name.startswith("_") or one.name in page.hidden:
        return False
    return one.annotation is not None and "property" not in one.labels and "ClassVar" not in str(one.annotation)


def attributes_of(each: Class) -> list[Any]:
    sections = each.docstring.parse("google", warnings=False) if each.docstring else []
    return [one for section in sections if section.kind is DocstringSectionKind.attributes for one in section.value]


def comment(one: Attribute) -> str:
    """The comment behind a field."""
    lines = Path(str(one.filepath)).read_text().splitlines()
    found = re.search(r"  # (?!type:|noqa)(.*)$", lines[(one.lineno or 1) - 1])
    return cell(found[1], code=False) if found else ""


def meaning(one: Attribute) -> str:
    """Of `weekly = writes("Sundays at 0:00.", minute=0, ...)`: the text, or else the cron fields."""
    found = re.search(r"writes\('([^']+)'", str(one.value))
    if found:
        return found[1]
    fields = re.findall(r"(\w+)=('[^']*'|\d+)", str(one.value))
    return ", ".join(f"{name} `{value.strip(chr(39))}`" for name, value in fields)


def annotation(one: Any) -> str:
    return re.sub(r"^Final\[(.*)\]$", r"\1", str(one.annotation))


def cell(text: str, *, code: bool = True) -> str:
    text = re.sub(r"\s+", " ", text)
    return (f"`{text}`" if code else text).replace("|", r"\|")


def line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def prose(text: str) -> str:
    """Text of a docstring as Markdown: an indented block is code."""
    parts = []
    for part in re.split(r"\n\s*\n", text.strip()):
        indented = all(each.startswith("    ") for each in part.splitlines())
        parts.append(f"```py\n{griffe_dedent(part)}\n```" if indented else line(part).replace("*args", r"\*args"))
    return "\n\n".join(parts)


def griffe_dedent(text: str) -> str:
    return "\n".join(each[4:] for each in text.splitlines())


def fenced(code: str) -> str:
    return f"\n```py\n{code.rstrip()}\n```\n"


# --- signatures


def signature(function: Function, name: str = "") -> str:
    """`def name(...) -> T`, one parameter a line if it is long."""
    given = [one for one in function.parameters if one.name not in ("self", "cls")]
    words, star = list[str](), False
    for at, one in enumerate(given):
        if one.kind in (ParameterKind.keyword_only,) and not star:
            words.append("*")
        star = star or one.kind in (ParameterKind.keyword_only, ParameterKind.var_positional)
        words.append(parameter(one))
        after = given[at + 1].kind if at + 1 < len(given) else None
        if one.kind is ParameterKind.positional_only and after is not ParameterKind.positional_only:
            words.append("/")
    start = "async def " if "async" in function.labels else "def "
    end = "" if name or function.returns is None else f" -> {function.returns}"
    start = name if name else start + function.name
    short = f"{start}({', '.join(words)}){end}"
    return short if len(short) <= WIDTH else f"{start}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def parameter(one: Parameter) -> str:
    stars = "*" if one.kind is ParameterKind.var_positional else "**" if one.kind is ParameterKind.var_keyword else ""
    typed = f": {one.annotation}" if one.annotation is not None else ""
    if one.default is None or stars:
        return f"{stars}{one.name}{typed}"
    return f"{one.name}{typed}{' = ' if typed else '='}{re.sub(QUOTED, DOUBLE, str(one.default))}"


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in Reference().pages():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
