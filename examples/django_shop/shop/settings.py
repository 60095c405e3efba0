"""Settings of the shop. run.py starts a PostgreSQL and names its folder of sockets; PGHOST names another server."""

import os

SECRET_KEY = "of your own"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", "localhost"),
        "NAME": "postgres",
        "USER": "shop",
    }
}
INSTALLED_APPS = ["qd.contrib.django", "shop"]

QD = {"url": "django://default"}  # jobs are in the same database
TASKS = {"default": {"BACKEND": "qd.contrib.django.tasks.QdBackend"}}
