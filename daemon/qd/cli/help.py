"""`qd help`: the help of a command, or a page of the documentation, which is part of the package.

qd help              what `qd --help` prints, and the topics
qd help work         what `qd work --help` prints
qd help retries      the page how-to/retries.md, rendered for the terminal
qd help locks        a page and a command: the page, after a line that names `qd locks --help`

A part of one page's name is enough, in any case; - and _ are the same. For other words it lists the pages about them.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Literal

import click
from click.shell_completion import CompletionItem

from qd.cli import context, output
from qd.options.kinds import did_you_mean
from qd.process.exit_codes import Exit

GROUPS = {"tutorial": "Tutorial", "how-to": "How-to", "reference": "Reference", "explanation": "Explanation"}
WIDEST = 100  # columns of text that are pleasant to read
FENCED = re.compile(r"^( *(?:```|~~~).*?^ *(?:```|~~~) *$)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]\[]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"^( {4}.*)$|(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", re.MULTILINE)  # not in indented code
BOX = re.compile(r"^( *> *)\[!([A-Z]+)\] *$", re.MULTILINE)


# -- the pages


def topics() -> dict[str, dict[str, Path]]:
    """Group -> topic -> page."""
    folder = context.shipped("docs")
    found = {group: {page.stem: page for page in sorted((folder / group).rglob("*.md"), key=_stem)} for group in GROUPS}
    found["how-to"] |= {page.stem: page for page in sorted(folder.glob("*.md")) if page.stem != "index"}  # of no group
    policy = folder.parent / "SECURITY.md"  # in the package it is reference/security.md
    if policy.is_file():
        found["reference"] = dict(sorted({"security": policy, **found["reference"]}.items()))
    return found


def _stem(page: Path) -> str:
    return page.stem


def pages() -> dict[str, Path]:
    return {topic: page for group in topics().values() for topic, page in group.items()}


def readable(text: str, known: Mapping[str, Path]) -> str:
    """The Markdown of a page with links that a terminal can show: the topic, the url, or the place in the repository."""
    parts = FENCED.split(text)  # every second one is a block of code
    parts[::2] = [_prose(part, known) for part in parts[::2]]
    return "".join(parts)


def _prose(text: str, known: Mapping[str, Path]) -> str:
    text = BOX.sub(lambda box: f"{box[1]}**{box[2].capitalize()}:**", COMMENT.sub("", text))
    text = LINK.sub(lambda link: _link(link, known), text)
    return CODE.sub(lambda code: code[1] or f"`` `{code[2]}` ``", text)  # the backticks stay visible


def _link(link: re.Match[str], known: Mapping[str, Path]) -> str:
    picture, text, target = link.groups()
    path = target.partition("#")[0]
    words, topic = text.replace("`", ""), Path(path).stem.lower()
    if "://" in target:
        return link[0] if not picture else f"({text}: {target})"
    if picture:
        return f"(picture: {text})"
    if not path or words.startswith("qd "):  # of this page; a command
        return text
    if path.endswith(".md") and topic in known:
        return f"`qd help {topic}`" if words == Path(path).name else f"{text} (`qd help {topic}`)"
    place = re.sub(r"^(\.\.?/)+", "", path)
    return text if words in (place, Path(place).name) else f"{text} ({place} in the repository)"


def rendered(markdown: str, width: int, colour: bool) -> str:
    from io import StringIO

    from rich.console import Console  # 0.1 s, only for pages
    from rich.markdown import Markdown
    from rich.theme import Theme

    text = StringIO()
    theme = Theme({"markdown.code": "bold"})
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=text, width=width, force_terminal=colour, color_system=system, theme=theme)
    console.print(Markdown(markdown, code_theme="ansi_dark", hyperlinks=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def show(topic: str, known: Mapping[str, Path], is_command: bool) -> None:
    """Print a page, through a pager if this is a terminal and the page is longer."""
    size = shutil.get_terminal_size((WIDEST, 24))
    head = f"The command is described by `` `qd {topic} --help` ``.\n\n" if is_command else ""
    markdown = head + readable(known[topic].read_text(encoding="utf-8"), known)
    text = rendered(markdown, min(size.columns, WIDEST), output.coloured())
    if sys.stdin.isatty() and sys.stdout.isatty() and text.count("\n") >= size.lines:
        click.echo_via_pager(text, color=output.coloured())
    else:
        click.echo(text, nl=False, color=output.coloured())


# -- search

SHORTEST = 3  # letters of a part of a name or word
BEGINNING = 6  # letters of a longer word, if no page has it: "autoscaling" finds "autoscale"
MOST = 8  # pages that are listed
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def named(word: str, known: Mapping[str, Path]) -> list[str]:
    """The topics with this in their names, without those of one command each."""
    enough = len(word) >= SHORTEST
    part = word.lower().replace("_", "-")
    return [topic for topic in known if enough and part in topic and not topic.startswith("qd-")]


def about(words: tuple[str, ...], known: Mapping[str, Path]) -> dict[str, str]:
    """The pages with all these words, best first -> the first heading with them, else the title. Longer words count, too.
    If no page has any, the words may be in the middle of others, or share only their beginning."""
    each = (found for patterns in ways(words) if (found := matching(patterns, named("-".join(words), known), known)))
    return next(each, {})


def ways(words: tuple[str, ...]) -> Iterator[list[str]]:
    """Patterns for the words, each way wider than the one before."""
    parts = [re.sub(r"\\?[-_]", "[-_]", re.escape(word)) for word in words]
    yield [rf"(?<!\w){part}" for part in parts]
    if all(len(word) >= SHORTEST for word in words):
        yield parts
    if any(len(word) > BEGINNING for word in words):
        yield [rf"(?<!\w){re.escape(word[:BEGINNING])}" for word in words]


def matching(texts: list[str], named: list[str], known: Mapping[str, Path]) -> dict[str, str]:
    """named: the topics that have the words in their names."""
    patterns = [re.compile(text, re.IGNORECASE) for text in texts]
    best = list[tuple[int, str, str]]()
    for topic, page in known.items():
        text = page.read_text(encoding="utf-8")
        times = min(len(pattern.findall(text)) for pattern in patterns)
        headings = HEADING.findall("".join(FENCED.split(text)[::2])) or [topic]
        found = [heading for heading in headings if all(pattern.search(heading) for pattern in patterns)]
        points = 20 * (topic in named) + 12 * (headings[0] in found) + 6 * min(len(found), 3)
        if points or times:
            heading = LINK.sub(r"\2", (found or headings)[0]).replace("`", "")
            best.append((points + min(times, 10), topic, heading))
    best.sort(key=lambda each: -each[0])  # as listed if equal
    return {topic: heading for _, topic, heading in best[:MOST]}


# -- the command


def completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The commands and topics, or the commands of the group before."""
    here = ctx.find_root()
    for word in ctx.params.get("words") or ():
        found = here.command.get_command(here, word) if isinstance(here.command, click.Group) else None
        if found is None:
            return []
        here = click.Context(found, info_name=word, parent=here)
    names = dict.fromkeys(here.command.list_commands(here) if isinstance(here.command, click.Group) else ())
    names |= dict.fromkeys(pages()) if here.parent is None else {}
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND | TOPIC]...", shell_complete=completed)
@context.options
def command(words: tuple[str, ...]) -> None:
    """Show the help of a command, or a page of the docs.

    A topic is the name of a page, or a part that no other name has: `qd help retries`. For any other word: lists the pages
    about it. Without an argument: lists the commands and the topics."""
    here = click.get_current_context().find_root()
    if not words:
        click.echo(f"{here.get_help()}\n\n{listed(here)}")
        return
    known = pages()
    assert isinstance(here.command, click.Group)
    commands = here.command.list_commands(here)
    if len(words) == 1 and (topic := Path(words[0]).name.lower().removesuffix(".md")) in known:
        return show(topic, known, topic in commands)
    words = (words[0].lower(), *words[1:]) if words[0].lower() in commands else words
    if words[0] not in commands:
        if len(words) == 1 and len(parts := named(words[0], known)) == 1:
            return show(parts[0], known, False)
        if found_pages := about(words, known):
            raise click.exceptions.Exit(suggest(words, commands, known, found_pages))
    for at, word in enumerate(words):
        group = here.command
        names = group.list_commands(here) if isinstance(group, click.Group) else []
        found = group.get_command(here, word) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(unknown(words[: at + 1], names, {} if at else known))
        here = click.Context(found, info_name=word, parent=here, **found.context_settings)
    click.echo(here.get_help())


def listed(here: click.Context) -> str:
    """The topics, by group. Those of one command each, such as qd-work, are not listed."""
    width, indent, lines = here.make_formatter().width, " " * 15, list[str]()
    for group, found in topics().items():
        if names := ", ".join(topic for topic in found if not topic.startswith("qd-")):
            first = f"  {GROUPS[group]:<11}  "
            lines.append(fill(names, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(["Topics, for `qd help TOPIC`:", *lines])


def suggest(words: tuple[str, ...], commands: list[str], known: Mapping[str, Path], pages: Mapping[str, str]) -> int:
    """Print the pages about these words."""
    near = did_you_mean(words[0], [*commands, *known]) if len(words) == 1 else ""
    what = f"no command or topic '{' '.join(words)}'{near}"
    click.echo(f"qd help: {what}; pages about it, for `qd help TOPIC`:", err=True)
    width = max(map(len, pages))
    for topic, heading in pages.items():
        click.echo(f"  {topic:<{width}}  {heading}", err=True)
    return Exit.USAGE


def unknown(words: tuple[str, ...], names: list[str], known: Mapping[str, Path]) -> str:
    """What is wrong with the last of these words."""
    what = "command or topic" if known else "command"
    near = did_you_mean(words[-1], [*names, *known])
    if not near and names:
        near = "; `qd help` lists all" if known else f" (known: {', '.join(names)})"
    return f"unknown {what} '{' '.join(words)}'{near}"
