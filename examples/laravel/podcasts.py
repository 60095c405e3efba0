"""Python's side: a job that Laravel dispatches, and that dispatches one for Laravel."""

from __future__ import annotations

from qd import Qd

app = Qd()


@app.job("podcasts.transcode", tries=3, backoff=[1, 5])
def transcode(podcast_id: int) -> None:
    file = f"podcast-{podcast_id}.mp3"  # the work would be here
    print(f"transcoded podcast {podcast_id}; dispatches App\\Jobs\\Publish to the queue php", flush=True)
    app.queue("php").push("App\\Jobs\\Publish@fire", {"podcast_id": podcast_id, "file": file})
