"""The background work of a picture gallery: fetch pictures, scale them, write the page, send mail.

Every job may run twice (delivery is at least once), so each writes a temporary file and renames it.
"""

from __future__ import annotations

import html
import urllib.request
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import urlsplit

from pgm import read, scaled, written
from qd import Job, Qd, current_job

app = Qd()
PICTURES, THUMBS, OUTBOX, PAGE = Path("pictures"), Path("thumbs"), Path("outbox"), Path("index.html")


@app.job("gallery.fetch", tries=3, backoff=[0.5, 2], timeout=2)
def fetch(url: str) -> None:
    """Download one picture, then have it scaled. A server that fails or hangs is tried three times in all."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        name = Path(urlsplit(url).path).name
        put(PICTURES / name, reply.read())
    scale.dispatch(name, width=48)


@app.job("gallery.scale", timeout=30)
def scale(name: str, width: int = 48) -> None:
    """Make the thumbnail of one picture."""
    put(THUMBS / name, written(scaled(read((PICTURES / name).read_bytes()), width)))


@app.job("mail.send", tries=5, backoff=[1, 5, 30])
def send(to: str, subject: str, text: str = "") -> None:
    """Send a mail; here into a file, named after the job so that a second run replaces the first one's."""
    mail = EmailMessage()
    mail["To"], mail["Subject"] = to, subject
    mail.set_content(text or subject)
    put(OUTBOX / f"{current_job().id}.eml", bytes(mail))


@app.job("gallery.page")
class WritePage(Job[None]):
    """A job as a class: its fields are its arguments, and failed() is called when it fails permanently."""

    title: str
    notify: str

    def handle(self) -> None:
        names = sorted(path.name for path in THUMBS.glob("*.pgm"))
        rows = "".join(f"<li>{html.escape(name)}</li>" for name in names)
        put(PAGE, f"<title>{html.escape(self.title)}</title><ul>{rows}</ul>\n".encode())
        send.dispatch(self.notify, f"{self.title}: {len(names)} pictures")

    def failed(self, error: BaseException) -> None:
        send.dispatch(self.notify, f"{self.title} could not be written", repr(error))


def put(path: Path, content: bytes) -> None:
    """Write the whole file or nothing."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.{current_job().id}")
    aside.write_bytes(content)
    aside.replace(path)
