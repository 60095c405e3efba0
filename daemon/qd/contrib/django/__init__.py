"""qd with Django: `INSTALLED_APPS += ["qd.contrib.django"]`, a Qd from `app()`, `manage.py qd work`.
`install(app)` adds the same to your own Qd.

Importing this or calling `app()` reads nothing of the project; the first use of the Qd does.
"""

from __future__ import annotations

from qd.contrib.django.project import DjangoQd, app, install

__all__ = ["DjangoQd", "app", "install"]
