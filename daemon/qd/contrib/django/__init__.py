"""qd inside Django: `INSTALLED_APPS += ["qd.contrib.django"]`, a Qd that `app()` gives, `manage.py qd work`.
A Qd of your own gets the same from `install(app)`.

Nothing of the project is read when this is imported or `app()` is called: that waits for the first use, as in any Qd.
"""

from __future__ import annotations

from qd.contrib.django.project import DjangoQd, app, install

__all__ = ["DjangoQd", "app", "install"]
