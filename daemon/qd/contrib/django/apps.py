"""The entry of INSTALLED_APPS: it brings `manage.py qd`."""

from __future__ import annotations

from django.apps import AppConfig


class QdConfig(AppConfig):
    name = "qd.contrib.django"
    label = "qd"
    verbose_name = "Background jobs"
