"""The Qd of this project."""

import qd.contrib.django

app = qd.contrib.django.app()
