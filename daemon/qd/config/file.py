"""The configuration file: found, read, each key with its line, and rejected as a whole if a key or value in it is invalid.

load.py calls `find` and then queries the file for values. tomllib reports no line numbers, so `lines_of` finds them.

QD_ENV_FILE names a file of variables, one NAME=value per line as in systemd's EnvironmentFile=. A `qd` command reads it
before its configuration, and each reload of `qd work` reads it again. Its values override the environment: a supervisor
that has read the same file passed on the values of the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from qd.config.settings import SECTIONS
from qd.errors import ConfigError
from qd.options import kinds

PYPROJECT = "pyproject.toml"
_TWICE = re.compile(r"Cannot declare \((.*?),?\) twice")
_AGAIN = re.compile(r"Cannot overwrite a value|Duplicate inline table key '(.*?)'")
_STATEMENT = re.compile(r"\s*(?:(\[.+?\]+)|([\w.\"'-]+)\s*=)")  # the name of a table, or a key
_HEADER = re.compile(r"\[\[?[^\[\]]+\]\]?\s*(?:#.*)?$")  # but not a line of a list inside a list
NAMED = "QD_ENV_FILE"
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


class ConfigFile:
    """A checked file. `table` has the structure of qd.toml: {"qd": {...}, "connections": {...}, ...}."""

    def __init__(self, path: Path, table: dict[str, Any], lines: Mapping[str, int]) -> None:
        self.path, self.table, self.lines = path, table, lines
        self.shown = _shown(path)
        for name, value in table.items():
            if name in SECTIONS:
                self._check_keys(name, name, value)
            elif f"{name}.NAME" in SECTIONS:
                self._check_named(name, value)
            else:
                raise ConfigError(self._unknown_section(name, value))

    def where(self, *names: str) -> str:
        """`qd.toml:12`, the place of a key; for a key inside an inline table, the start of that table."""
        line = self.line(".".join(names))
        return f"{self.shown}:{line}" if line else self.shown

    def line(self, dotted: str) -> int:
        """The line of a key, 0 if unknown."""
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return self.lines.get(dotted, 0)

    def section(self, *names: str) -> Mapping[str, Any]:
        """The table of that name, {} if the file lacks it."""
        table: Any = self.table
        for name in names:
            table = table.get(name, {})
        return table  # type: ignore[no-any-return]

    def _check_named(self, name: str, value: Any) -> None:
        """Check the tables of a section whose keys are the user's names."""
        for each, keys in self._table(name, value).items():
            if not each.isprintable() or not each:
                raise ConfigError(f"{each!r} is not a name, in {self.where(name)} [{name}]")
            self._check_keys(f"{name}.{each}", f"{name}.NAME", keys)

    def _check_keys(self, dotted: str, kind: str, keys: Any) -> None:
        for key, value in self._table(dotted, keys).items():
            place = f"{dotted}.{key}"
            if f"{place}.NAME" in SECTIONS:
                self._check_named(place, value)
            elif key not in SECTIONS[kind]:
                raise ConfigError(self._unknown_key(key, dotted, kind))
            else:
                try:
                    SECTIONS[kind][key].read(value)
                except ValueError as error:
                    raise ConfigError(f"{key} in {self.where(place)} [{dotted}]: {error}") from None

    def _table(self, dotted: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{dotted} in {self.where(dotted)} must be a table of keys, written [{dotted}]")
        return value

    def _unknown_key(self, key: str, dotted: str, kind: str) -> str:
        where = f"in {self.where(f'{dotted}.{key}')} [{dotted}]"
        inner = [name.split(".")[-2] for name in SECTIONS if name.startswith(f"{kind}.") and name.endswith(".NAME")]
        near = kinds.did_you_mean(key, [*SECTIONS[kind], *inner])
        if not near and (homes := _homes(key)):
            near = f" (it belongs in {' or '.join(homes)})"
        return f"unknown key '{key}' {where}{near or ' (known: ' + ', '.join(SECTIONS[kind]) + ')'}"

    def _unknown_section(self, name: str, value: Any) -> str:
        known = [section.partition(".")[0] for section in SECTIONS]
        if not isinstance(value, dict) and (homes := _homes(name)):
            return f"key '{name}' in {self.where(name)} is in no section (it belongs in {' or '.join(homes)})"
        near = kinds.did_you_mean(name, known) or f" (known: {', '.join(dict.fromkeys(known))})"
        return f"unknown section [{name}] in {self.where(name)}{near}"


def _homes(key: str) -> list[str]:
    """The sections with such a key; schedule entries only if no other section has it."""
    homes = [f"[{section}]" for section, keys in SECTIONS.items() if key in keys]
    return homes[:1] if len(homes) < 2 else [home for home in homes if "entries" not in home]


def find(path: Path | None, environ: Mapping[str, str]) -> ConfigFile | None:
    """The file named by `path` or QD_CONFIG, else ./qd.toml, else [tool.qd] of ./pyproject.toml, or None. Raises
    ConfigError if a named file does not exist, or a file is invalid."""
    if named := path or environ.get("QD_CONFIG"):
        whole = Path(named).absolute()
        if (found := _read(whole)) is None:
            raise ConfigError(f"no [tool.qd] in {_shown(whole)}")
        return found
    if os.path.lexists("qd.toml"):
        path = Path("qd.toml").absolute()
        if path.exists() and not path.is_file():  # reading a pipe would block
            kind = "a folder" if path.is_dir() else "a pipe" if path.is_fifo() else "no file"
            raise ConfigError(f"./qd.toml is {kind}: remove it, or name a file with --config")
        return _read(path)
    if Path(PYPROJECT).is_file():
        return _read(Path(PYPROJECT).absolute())
    return None


def _read(path: Path) -> ConfigFile | None:
    import tomllib  # only if there is a file

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {_shown(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{_shown(path)} is not UTF-8 text") from None
    ours = path.name == PYPROJECT
    if ours and "qd" not in text:  # not our file: errors in it do not matter
        return None
    try:
        table = tomllib.loads(text)
        lines = lines_of(text, "tool.qd" if ours else "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_broken(path, str(error), text)) from None
    except RecursionError:
        raise ConfigError(f"{_shown(path)}: tables or lists are nested too deep") from None
    if not ours:
        return ConfigFile(path, table, lines)
    mine = table.get("tool", {}).get("qd")
    if mine is None:
        return None
    if not isinstance(mine, dict):
        raise ConfigError(f"tool.qd in {_shown(path)} must be a table of keys, written [tool.qd]")
    # The keys right below [tool.qd] are those of [qd].
    names = {section.partition(".")[0] for section in SECTIONS} - {"qd"}
    own = {key: value for key, value in mine.items() if key not in names and not isinstance(value, dict)}
    table = {key: value for key, value in mine.items() if key not in own}
    if "qd" in table:
        raise ConfigError("[tool.qd.qd] in pyproject.toml: put the keys of [qd] right below [tool.qd]")
    moved = {f"qd.{dotted}" if dotted in own else dotted: line for dotted, line in lines.items()}
    return ConfigFile(path, {"qd": own, **table}, moved)


def _broken(path: Path, message: str, text: str) -> str:
    """`qd.toml:3:5: Expected '=' after a key`, from a message of tomllib."""
    if (twice := _TWICE.match(message)) is not None:
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        message = message.replace(twice[0], f"[{name}] is defined twice: rename one of them")
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if (again := _AGAIN.match(message)) is not None:  # the position is the end of the statement
        lines = [*enumerate(text.split("\n"), 1)][: int(match[2]) if match else None]
        number, found = next((at, found) for at, line in reversed(lines) if (found := _STATEMENT.match(line)))
        name = found[1] or f"the key '{again[1] or found[2]}'"
        return f"{_shown(path)}:{number}: {name} is defined twice: remove one of them"
    return f"{_shown(path)}:{match[2]}:{match[3]}: {match[1]}" if match else f"{_shown(path)}: {message}"


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def lines_of(text: str, below: str = "") -> dict[str, int]:
    """Dotted key -> its line, for the tables and keys of valid TOML. below: only inside this table, without its name."""
    import tomllib

    found, section, held, start = dict[str, int](), "", "", 0
    inside = below and f"{below}."
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not held and (not bare or bare.startswith("#")):
            continue
        header = not held and _HEADER.match(bare) is not None
        if not header and not f"{section}.".startswith(inside):
            continue  # another tool's table and its long lists
        start, held = start if held else number, f"{held}{line}\n"
        try:
            keys = list(_paths(tomllib.loads(held)))
        except tomllib.TOMLDecodeError:
            continue  # the statement continues in the next line
        held = ""
        section = keys[0] if header else section
        for dotted in keys[:1] if header else [f"{section}.{key}" if section else key for key in keys]:
            if f"{dotted}.".startswith(inside):
                found.setdefault(dotted[len(below) :].lstrip("."), start)
    return found


def _paths(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Its dotted keys, inner ones first."""
    for key, value in table.items():
        dotted = f"{before}{key}"
        inner = list(_paths(value, f"{dotted}.")) if isinstance(value, dict) else []
        yield from inner or [dotted]
        if inner:
            yield dotted


class Variables:
    """The variables of QD_ENV_FILE in the environment of this process."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._covered: dict[str, str | None] = {}  # their values in the original environment
        self.found: Mapping[str, str] = {}
        self._begun = False

    def begin(self) -> None:
        """Apply the file, once per command, before the configuration is read. Raises ConfigError."""
        if not self._begun:
            self.put(self.read())
            self._begun = True

    def read(self) -> Mapping[str, str]:
        """The current content of the file, without applying it. Raises ConfigError if it cannot be read."""
        path = self._environ.get(NAMED, "")
        if not path:
            return {}
        try:
            return parsed(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            why = f"{getattr(error, 'strerror', None) or 'it is not UTF-8'} (correct it, or leave it out)"
            raise ConfigError(f"{NAMED} names {path}, which cannot be read: {why}") from None

    def put(self, found: Mapping[str, str]) -> None:
        """Set these variables in the environment, and restore earlier ones that are no longer among them."""
        for name in self.found.keys() - found.keys():
            self._environ.pop(name, None)
            if (before := self._covered.pop(name)) is not None:
                self._environ[name] = before
        for name, value in found.items():
            self._covered.setdefault(name, self._environ.get(name))
            self._environ[name] = value
        self.found = found


def parsed(text: str, path: str) -> Mapping[str, str]:
    """Parse NAME=value lines, without escapes or substitution. Errors name the line number only: the line may contain a
    secret. Raises ConfigError."""
    found = dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        held = LINE.fullmatch(line)
        value = held[2] if held is not None else ""
        quote = value[:1] if value[:1] in ("'", '"') else ""
        closed = not quote or (len(value) > 1 and value[-1] == quote)
        if held is None or not closed or "\0" in value or held[1] == NAMED:
            raise ConfigError(f'{path}:{number} is not a variable (write NAME=value, NAME="value", or start it with #)')
        found[held[1]] = value[1:-1] if quote else value
    return found


VARIABLES = Variables(os.environ)
