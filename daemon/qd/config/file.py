"""The file: found, read, each key with its line, and refused as a whole when a key or a value in it is not known.

load.py calls `find` and then asks the file for values. tomllib tells no line numbers, so `lines_of` finds them.

QD_ENV_FILE: a file of variables, one NAME=value a line, as systemd's EnvironmentFile= has them. A `qd` command reads it
before its configuration, and each reload of `qd work` reads it anew.

What stands in it wins over what the program was started with: a supervisor that has read the same file gave it what stood
there at the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from qd.config.table import ENTRY_WORDS, PLANNED, SECTIONS
from qd.errors import ConfigError
from qd.options import kinds

PYPROJECT = "pyproject.toml"
_TWICE = re.compile(r"Cannot declare \((.*?),?\) twice")
_HEADER = re.compile(r"\[\[?[^\[\]]+\]\]?\s*(?:#.*)?$")  # and not the line of a list that stands in a list


class ConfigFile:
    """A file that was read and checked. `table` is as in qd.toml: {"qd": {...}, "connections": {...}, ...}."""

    def __init__(self, path: Path, table: dict[str, Any], lines: Mapping[str, int]) -> None:
        self.path, self.table, self.lines = path, table, lines
        self.shown = _shown(path)
        for dotted, value in table.items():
            self._check_section(dotted, value)

    def where(self, dotted: str) -> str:
        """`qd.toml:12`, the place of a key; for one inside an inline table, where that table begins."""
        line = self.line(dotted)
        return f"{self.shown}:{line}" if line else self.shown

    def line(self, dotted: str) -> int:
        """0: it is not known."""
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return self.lines.get(dotted, 0)

    def section(self, *names: str) -> Mapping[str, Any]:
        """The table of that name, {} when it is not there."""
        table: Any = self.table
        for name in names:
            table = table.get(name, {})
        return table  # type: ignore[no-any-return]

    # --- the check ---

    def _check_section(self, name: str, value: Any) -> None:
        if name in SECTIONS:
            return self._check_keys(name, name, value)
        if f"{name}.NAME" not in SECTIONS:
            raise ConfigError(self._unknown_section(name, value))
        self._check_named(name, value)

    def _check_named(self, name: str, value: Any) -> None:
        """The tables of a section whose keys are names that the user chose."""
        for each, keys in self._table(name, value).items():
            if not each.isprintable() or not each:
                raise ConfigError(f"{each!r} is not a name, in {self.where(name)} [{name}]")
            self._check_keys(f"{name}.{each}", f"{name}.NAME", keys)

    def _check_keys(self, dotted: str, kind: str, keys: Any) -> None:
        for key, value in self._table(dotted, keys).items():
            place = f"{dotted}.{key}"
            option = SECTIONS[kind].get(key)
            if f"{place}.NAME" in SECTIONS:
                self._check_named(place, value)
                continue
            if option is None:
                raise ConfigError(self._unknown_key(key, dotted, kind))
            try:
                option.read(value)
            except ValueError as error:
                raise ConfigError(f"{key} in {self.where(place)} [{dotted}]: {error}") from None

    def _table(self, dotted: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{dotted} in {self.where(dotted)} is a table of keys, written [{dotted}]")
        return value

    def _unknown_key(self, key: str, dotted: str, kind: str) -> str:
        where = f"in {self.where(f'{dotted}.{key}')} [{dotted}]"
        if f"{dotted}.{key}" in PLANNED:
            return f"{key} {where} ({PLANNED[f'{dotted}.{key}']}) is not built in this version"
        if kind == "schedule.entries.NAME" and key in ENTRY_WORDS:
            return f"unknown key '{key}' {where}: {ENTRY_WORDS[key]}"
        inner = [name.split(".")[-2] for name in SECTIONS if name.startswith(f"{kind}.") and name.endswith(".NAME")]
        near = kinds.did_you_mean(key, [*SECTIONS[kind], *inner])
        homes = _homes(key)
        if not near and homes:
            near = f" (it belongs into {' or '.join(homes)})"
        return f"unknown key '{key}' {where}{near or ' (known: ' + ', '.join(SECTIONS[kind]) + ')'}"

    def _unknown_section(self, name: str, value: Any) -> str:
        known = [section.partition(".")[0] for section in SECTIONS]
        homes = _homes(name)
        if homes and not isinstance(value, dict):
            return f"key '{name}' in {self.where(name)} stands in no section (it belongs into {' or '.join(homes)})"
        near = kinds.did_you_mean(name, known) or f" (known: {', '.join(dict.fromkeys(known))})"
        return f"unknown section [{name}] in {self.where(name)}{near}"


def _homes(key: str) -> list[str]:
    """The sections that have such a key; an entry of the schedule only where no other has."""
    homes = [f"[{section}]" for section, keys in SECTIONS.items() if key in keys]
    return homes[:1] if len(homes) < 2 else [home for home in homes if "entries" not in home]


def find(path: Path | None, environ: Mapping[str, str]) -> ConfigFile | None:
    """The file named by `path` or QD_CONFIG, else ./qd.toml, else [tool.qd] of ./pyproject.toml. None: there is none.

    Raises ConfigError: a named file is not there, or what was found cannot be used.
    """
    named = path or (Path(environ["QD_CONFIG"]) if environ.get("QD_CONFIG") else None)
    if named:
        found = _read(named.absolute())
        if found is None:
            raise ConfigError(f"no [tool.qd] in {_shown(named.absolute())}")
        return found
    if os.path.lexists("qd.toml"):
        if Path("qd.toml").exists() and not Path("qd.toml").is_file():  # to read a pipe would wait for ever
            raise ConfigError(f"./qd.toml is {_kind(Path('qd.toml'))}: take it away, or name a file with --config")
        return _read(Path("qd.toml").absolute())
    if Path(PYPROJECT).is_file():
        return _read(Path(PYPROJECT).absolute())
    return None


def _read(path: Path) -> ConfigFile | None:
    import tomllib  # only where there is a file

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {_shown(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{_shown(path)} is not UTF-8 text") from None
    ours = path.name == PYPROJECT
    if ours and "qd" not in text:  # somebody else's file: whatever is wrong in it is not our business
        return None
    try:
        table = tomllib.loads(text)
        lines = lines_of(text, "tool.qd" if ours else "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_broken(path, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{_shown(path)}: tables or lists stand too deep in each other") from None
    if not ours:
        return ConfigFile(path, table, lines)
    mine = table.get("tool", {}).get("qd")
    if mine is not None and not isinstance(mine, dict):
        raise ConfigError(f"tool.qd in {_shown(path)} is a table of keys, written [tool.qd]")
    return None if mine is None else ConfigFile(path, *_as_qd_toml(mine, lines))


def _as_qd_toml(mine: dict[str, Any], lines: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """What stands right below [tool.qd] is what qd.toml has below [qd]."""
    names = {section.partition(".")[0] for section in SECTIONS} - {"qd"}
    own = {key: value for key, value in mine.items() if key not in names and not isinstance(value, dict)}
    table = {key: value for key, value in mine.items() if key not in own}
    if "qd" in table:
        raise ConfigError("[tool.qd.qd] in pyproject.toml: the keys of [qd] stand right below [tool.qd] there")
    moved = {f"qd.{dotted}" if dotted in own else dotted: line for dotted, line in lines.items()}
    return {"qd": own, **table}, moved


def _broken(path: Path, said: str) -> str:
    """`qd.toml:3:5: Expected '=' after a key`, from what tomllib says."""
    if (twice := _TWICE.match(said)) is not None:
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        said = said.replace(twice[0], f"[{name}] stands there twice: give one of them another name")
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", said, re.DOTALL)
    return f"{_shown(path)}:{match[2]}:{match[3]}: {match[1]}" if match else f"{_shown(path)}: {said}"


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "a pipe" if path.is_fifo() else "no file"


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


# --- lines -----------------------------------------------------------------------------------------------------------


def lines_of(text: str, below: str = "") -> dict[str, int]:
    """Dotted key -> its line, for the tables and keys of valid TOML; `below`: of that table only, named without it."""
    found: dict[str, int] = {}
    for number, section, keys in _statements(text, below):
        for dotted in keys or [section]:
            whole = ".".join(filter(None, (section, dotted))) if keys else dotted
            if below and whole != below and not whole.startswith(below + "."):
                continue
            found.setdefault(whole[len(below) :].lstrip(".") if below else whole, number)
    return found


def _statements(text: str, below: str) -> Iterator[tuple[int, str, list[str]]]:
    """(line, section, keys set there), for each header (no keys) and each `key = value`, which may take many lines."""
    section, held, start = "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not held and (not bare or bare.startswith("#")):
            continue
        header = not held and _HEADER.match(bare) is not None
        if not header and not f"{section}.".startswith(f"{below}." if below else ""):
            continue  # another tool's table, and its long lists
        start, held = start if held else number, f"{held}{line}\n"
        keys = _keys(held)
        if keys is None:
            continue  # goes on in the next line
        held = ""
        if header:
            section = keys[0]
            yield number, section, []
        else:
            yield start, section, keys


def _keys(statement: str) -> list[str] | None:
    """The dotted keys of one statement, the outer ones too. None: it is not complete."""
    import tomllib

    try:
        table = tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None
    return list(_paths(table))


def _paths(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in table.items():
        dotted = f"{before}{key}"
        inner = list(_paths(value, f"{dotted}.")) if isinstance(value, dict) else []
        yield from inner or [dotted]
        if inner:
            yield dotted


NAMED = "QD_ENV_FILE"
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


class Variables:
    """Those of the file, as far as they are in the environment of this process."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._covered: dict[str, str | None] = {}  # what stood in place of each
        self.found: Mapping[str, str] = {}
        self._begun = False

    def begin(self) -> None:
        """Once in a command: before its first look at the configuration. Raises ConfigError."""
        if not self._begun:
            self.put(self.read())
            self._begun = True

    def read(self) -> Mapping[str, str]:
        """What the file holds now; nothing is changed. Raises ConfigError: it cannot be read."""
        path = self._environ.get(NAMED, "")
        if not path:
            return {}
        try:
            return parsed(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(
                f"{NAMED} names {path}, which cannot be read: {why} (correct it, or leave it out)"
            ) from None

    def put(self, found: Mapping[str, str]) -> None:
        """From now on these are in the environment, and those of before that are not among them no more."""
        for name in self.found.keys() - found.keys():
            before = self._covered.pop(name)
            if before is None:
                self._environ.pop(name, None)
            else:
                self._environ[name] = before
        for name, value in found.items():
            self._covered.setdefault(name, self._environ.get(name))
            self._environ[name] = value
        self.found = found


def parsed(text: str, path: str) -> Mapping[str, str]:
    """No escapes, and nothing is filled in. A line that is none is named by its number alone: it may hold a secret. Raises
    ConfigError."""
    found = dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        held = LINE.fullmatch(line)
        value = unquoted(held[2]) if held is not None else None
        if held is None or value is None or "\0" in value or held[1] == NAMED:
            raise ConfigError(f'{path}:{number} is no variable (write NAME=value, NAME="value", or # in front of it)')
        found[held[1]] = value
    return found


def unquoted(value: str) -> str | None:
    """None: a quote that is not closed."""
    if value[:1] not in ('"', "'"):
        return value
    return value[1:-1] if len(value) > 1 and value[-1] == value[0] else None


VARIABLES = Variables(os.environ)
