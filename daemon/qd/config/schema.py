"""The JSON schema of qd.toml, made of SECTIONS: editors complete and check a file that names it in its first line.

    #:schema ./qd.schema.json

It accepts what ConfigFile accepts, but knows only one option at a time and no bounds of durations that are text ("0.5s").
Draft 7, as SchemaStore and Taplo want it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qd.config.settings import SECTIONS
from qd.options import kinds
from qd.options.drivers import DRIVERS, SCHEMES
from qd.options.tables import Option, shown

Schema = dict[str, Any]
NAME = "qd.schema.json"
HEAD: Schema = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://json.schemastore.org/qd.json",
    "title": "qd.toml",
    "description": "The configuration of qd, a worker for background jobs.",
}
ABOUT = {
    "qd": "The app, its modules, and the connection it uses.",
    "connections.NAME": "Where queues are: one section per connection, under a name of your choice.",
    "worker": "What `qd work` does. Each key is also a flag and a variable: timeout, --timeout, QD_TIMEOUT.",
    "pools.NAME": "A pool for `qd work --pool NAME`: keys of [worker] that override those there.",
    "laravel": "What qd shares with a Laravel application.",
    "failed": "The failed jobs of each queue.",
    "signing": "Signed payloads: workers run only what a program with one of these keys has sent.",
    "encryption": "The keys of jobs with encrypted=True.",
    "schedule": "The schedule, and entries that need no code.",
    "schedule.entries.NAME": "An entry: one of job, call, shell and qd, and one of cron and every.",
    "alerts": "What `qd alerts` reports, and where to.",
    "alerts.queues.NAME": "Limits of one queue.",
    "dashboard": "Who may see `qd dashboard`.",
}

PLAIN = r"[^\x00-\x1f\x7f]*"  # printable text
WORD = rf"{PLAIN}[^\s\x00-\x1f\x7f]{PLAIN}"
DATABASES = "|".join(DRIVERS["database"].schemes)
OTHERS = "|".join(word.replace("+", r"\+") for word in SCHEMES if word != "embedded")
SPAN = kinds.SPAN.pattern
SIZE = kinds.SIZE.pattern.replace("[KMGT]", "[KMGTkmgt]").replace("I?B", "[Ii]?[Bb]")
SWITCH = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in kinds.WORDS)


def text_of(pattern: str, **more: Any) -> Schema:
    """Text that matches the whole pattern, with white space around it."""
    return {"type": "string", "pattern": rf"^\s*({pattern})\s*$", **more}


def several(item: Schema, pattern: str, least: int = 0) -> Schema:
    """A list, or text with commas."""
    return {"anyOf": [{"type": "array", "items": item, "minItems": least}, text_of(rf"{pattern}(,{pattern})*")]}


NO_QUEUE = {"not": {"type": "string", "pattern": rf"({'|'.join(kinds.QUEUE_SUFFIXES)})\s*(,|$)"}}
QUEUE = {**text_of(WORD), **NO_QUEUE}
SPANS = rf"\s*({SPAN})\s*"
KEY = kinds.KEY.pattern
USER = kinds.USER.pattern
URL = rf"(embedded:|({OTHERS}|({DATABASES})\+[a-z0-9.+-]*)://){PLAIN}"
NUMBER: Schema = {"type": "number", "minimum": 0, "maximum": kinds.LONGEST}
KINDS: Mapping[str, Schema] = {
    "count": {"anyOf": [{"type": "integer", "minimum": 0}, text_of("[0-9]{1,15}")]},
    "span": {"anyOf": [NUMBER, text_of(SPAN)]},
    "spans": {
        "anyOf": [NUMBER, text_of("exponential"), *several({"anyOf": [NUMBER, text_of(SPAN)]}, SPANS, 1)["anyOf"]]
    },
    "share": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, text_of(r"0?\.[0-9]+|[01](\.0*)?")]},
    "size": {"anyOf": [{"enum": [0]}, {"type": "integer", "minimum": 1 << 20}, text_of(SIZE)]},
    "switch": {"anyOf": [{"type": "boolean"}, text_of(SWITCH)]},
    "text": {"type": "string", "pattern": f"^{PLAIN}$"},
    "name": text_of(WORD),
    "names": several(text_of(WORD), WORD.replace("[^", "[^,")),
    "queue": QUEUE,
    "queues": {**several(QUEUE, WORD.replace("[^", "[^,"), 1), **NO_QUEUE},
    "driver": {"anyOf": [{"enum": ["", *DRIVERS]}, {"type": "string", "pattern": f"^{kinds.WORD.pattern}$"}]},
    "url": text_of(URL),
    "database": text_of(rf"({DATABASES})(\+[^:]*)?://{PLAIN}"),
    "reference": {"type": "string", "pattern": rf"^(|\s*{kinds.REFERENCE.pattern}\s*)$"},
    "keys": several({"type": "string", "pattern": f"^{KEY}$"}, KEY),
    "users": several(text_of(USER), rf"\s*{USER}\s*"),
    "prefix": {"type": "string", "pattern": f"^{kinds.PREFIX.pattern}$"},
    "http": {"type": "string", "pattern": f"^(https?://{PLAIN})?$"},
    "zone": text_of(WORD),
    "arguments": {"type": "object"},
}


def schema() -> Schema:
    found: Schema = {**HEAD, **table("", {}), "definitions": {"worker": table("worker", SECTIONS["worker"])}}
    for name in SECTIONS:
        *outer, last = name.removesuffix(".NAME").split(".")
        place = found
        for word in outer:
            place = place["properties"][word]
        made = {"$ref": "#/definitions/worker"} if name in ("worker", "pools.NAME") else table(name, SECTIONS[name])
        if name.endswith(".NAME"):
            made = {"type": "object", "propertyNames": {"pattern": f"^{PLAIN}.$"}, "additionalProperties": made}
        made.setdefault("description", ABOUT[name])
        place["properties"][last] = made
    return found


def table(name: str, rows: Mapping[str, Option]) -> Schema:
    found: Schema = {"description": ABOUT[name]} if name else {}
    found |= {"type": "object", "additionalProperties": False}
    found["properties"] = {row.name: option(row) for row in rows.values()}
    if pairs := [{"required": [row.file_of, row.name]} for row in rows.values() if row.file_of]:
        found["not"] = {"anyOf": pairs}
    return found


def option(row: Option) -> Schema:
    facts = [row.help[:1].upper() + row.help[1:], row.unit.capitalize(), f"Default: {row.shown}"]
    about: Schema = {"description": ". ".join(filter(None, facts)) + "."}
    if row.auto:
        about["default"] = "auto"
    elif row.default not in ("", (), None):
        about["default"] = shown(row.kind, row.default) if row.kind in ("span", "size") else row.default
    if row.choices:
        return {**about, "enum": list(row.choices)}
    found = KINDS[row.kind]
    if row.at_least or row.at_most:
        bounds = {"minimum": row.at_least, **({"maximum": row.at_most} if row.at_most else {})}
        first, *others = found["anyOf"]
        found = {"anyOf": [{**first, **bounds}, *others]} if row.kind != "size" else found
    return {**about, "anyOf": [*found["anyOf"], {"enum": ["auto"]}]} if row.auto else {**about, **found}


def text() -> str:
    return json.dumps(schema(), indent=2) + "\n"
