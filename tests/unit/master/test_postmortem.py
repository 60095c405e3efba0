"""master/postmortem.py: the taken stack is cut to the job's own code."""

from __future__ import annotations

from qd.master.postmortem import job_stack

BELOW = """\
  File "/lib/qd/worker/attempt.py", line 200 in _body
  File "/lib/qd/worker/attempt.py", line 170 in <lambda>
  File "/lib/qd/worker/timeout.py", line 60 in guard
  File "/lib/qd/worker/worker.py", line 90 in run
  File "/lib/click/core.py", line 1 in main
  File "/bin/qd", line 8 in <module>"""
JOB = """\
Current thread 0x01 (most recent call first):
  File "/lib/qd/jobs/context.py", line 5 in checkpoint
  File "/srv/jobs.py", line 9 in inner
  File "/srv/jobs.py", line 7 in ship"""
THREAD = """\
Thread 0x02 (most recent call first):
  File "/lib/threading.py", line 3 in wait
  File "/lib/qd/worker/worker.py", line 90 in run"""


def cut(stack: str) -> str:
    return job_stack(stack, "/lib/qd/")


def test_what_led_to_the_job_is_left_out():
    assert cut(f"{JOB}\n{BELOW}") == JOB
    assert cut(f"{THREAD}\n\n{JOB}\n{BELOW}\n") == f"{THREAD}\n\n{JOB}"


def test_what_the_job_called_of_qd_between_its_own_frames_stays():
    between = '  File "/lib/qd/jobs/pipeline.py", line 4 in through\n  File "/srv/middleware.py", line 2 in timed'
    assert cut(f"{JOB}\n{between}\n{BELOW}") == f"{JOB}\n{between}"


def test_without_code_of_a_job_all_of_it_stays():
    for stack in ("", THREAD, f"Current thread 0x01 (most recent call first):\n{BELOW}", "cut off\n\n"):
        assert cut(stack) == stack
