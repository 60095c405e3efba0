"""The project's Qd, for `manage.py qd` if settings.QD names no other module."""

from __future__ import annotations

from qd.contrib.django.project import app as made

app = made()
