"""A shop's background jobs, with what goes wrong in production: errors, slow jobs, a provider that hangs, a paused queue."""

from __future__ import annotations

import random
import time

from qd import Qd, current_job

app = Qd()


@app.job("mail.welcome", queue="mail", tries=3, backoff=5)
def welcome(address: str) -> None:
    time.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.02:
        raise ConnectionError("the mail server refused the connection: 421 too many connections")


@app.job("images.resize", queue="images")
def resize(name: str, width: int) -> None:
    time.sleep(random.uniform(0.1, 0.6))


@app.job("webhooks.deliver", queue="webhooks", tries=2, backoff=2, timeout=3)
def deliver(url: str) -> None:
    if random.random() < 0.1:
        time.sleep(60)  # the receiver never answers: the job is ended after 3 s
    if random.random() < 0.2:
        raise TimeoutError(f"no answer from {url}")
    time.sleep(0.05)


@app.job("reports.pdf", queue="reports", timeout=120)
def pdf(month: str) -> None:
    for page in range(1, 21):
        time.sleep(random.uniform(0.2, 1.5))
        current_job().progress(page * 5)


@app.job("orders.export", queue="exports")
def export(day: str) -> None:
    time.sleep(1)


@app.job("batch.step", queue="images")
def step(number: int) -> None:
    time.sleep(0.5)


app.schedule(export.bind("today"), name="exports.often").every_twenty_seconds()
app.schedule(pdf.bind("this month"), name="reports.minutely").every_minute()
