"""Messages of SQS over HTTP with moto: sent in batches of ten, checked one by one, received, answered; errors."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qd.drivers.broker.base import QueueCounts
from qd.drivers.sqs.client import NoSuchQueue, Service, Woken
from qd.drivers.sqs.messages import SqsMessages, batches
from qd.drivers.urls import SqsUrl
from qd.errors import ConnectionLost, NeverTaken, ServerBusy, ServerRefused, TooLarge, Unreachable, WrongPassword
from tests.support.servers.sqs import Sqs
from tests.support.waiting import eventually

URL = "sqs://eu-west-1?endpoint="


@pytest.fixture
def messages(sqs: Sqs, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsMessages]:
    for name, value in sqs.credentials.items():
        monkeypatch.setenv(name, value)
    client = sqs.client()
    client.create_queue(QueueName="mail")
    client.create_queue(QueueName="mail.fifo", Attributes={"FifoQueue": "true"})
    client.close()
    made = SqsMessages(Service(SqsUrl(f"{URL}{sqs.endpoint}")))
    yield made
    made.service.close()


def answers(messages: SqsMessages, *replies: Any) -> list[dict[str, Any]]:
    """Answer the next calls with these replies. Returns the requests."""
    requests, waiting = list[dict[str, Any]](), list(replies)

    def call(operation: str, **more: Any) -> dict[str, Any]:
        requests.append({"operation": operation, **more})
        reply = waiting.pop(0)
        if isinstance(reply, Exception):
            raise reply
        failed = [each["Id"] for each in reply.get("Failed", ())]
        return {"Successful": [each for each in more["Entries"] if each["Id"] not in failed], **reply}

    messages.service.call = call  # type: ignore[method-assign]
    return requests


def refusal(messages: SqsMessages) -> Exception | None:
    try:
        messages.receive("mail", 30)
    except ConnectionLost as error:
        return error
    return None


def payload(n: int, **more: Any) -> bytes:
    return json.dumps({"uuid": f"u{n}", "job": "quick", **more}).encode()


def test_many_jobs_are_sent_in_batches_of_ten(messages: SqsMessages) -> None:
    assert messages.send("mail", [(payload(n), 0) for n in range(25)]) == [None] * 25
    assert messages.counts("mail") == QueueCounts(25, 0, 0)
    assert messages.send("mail", [(payload(99), 60)]) == [None]
    assert messages.counts("mail") == QueueCounts(25, 1, 0)


def test_batches_hold_ten_jobs_and_a_megabyte() -> None:
    assert [len(some) for some in batches([(n, b"x") for n in range(25)])] == [10, 10, 5]
    large = b"x" * 600_000
    assert list(batches([(0, large), (1, large), (2, b"x")])) == [[0], [1, 2]]


def test_a_payload_that_is_too_large_is_an_error_and_the_others_are_sent(messages: SqsMessages) -> None:
    errors = messages.send("mail", [(payload(1), 0), (b"x" * 1_100_000, 0), (b"\xff", 0), (payload(2), 0)])
    assert [type(why) for why in errors] == [type(None), TooLarge, NeverTaken, type(None)]
    assert "1100000 bytes" in str(errors[1])
    assert messages.counts("mail").ready == 2


def test_a_batch_that_the_server_rejects_as_too_large_is_halved(messages: SqsMessages) -> None:
    messages.url("mail")
    requests = answers(messages, ServerRefused("BatchRequestTooLong: 262144"), {}, {})
    assert messages.send("mail", [(payload(n), 0) for n in range(4)]) == [None] * 4
    assert [len(each["Entries"]) for each in requests] == [4, 2, 2]


def test_only_messages_that_failed_inside_sqs_are_sent_again(messages: SqsMessages) -> None:
    messages.url("mail")
    busy = {"Id": "1", "Code": "InternalError", "SenderFault": False}
    wrong = {"Id": "2", "Code": "InvalidMessageContents", "SenderFault": True}
    requests = answers(messages, {"Failed": [busy, wrong]}, {"Failed": [busy]}, {})
    errors = messages.send("mail", [(payload(n), 0) for n in range(4)])
    assert [type(why) for why in errors] == [type(None), type(None), NeverTaken, type(None)]
    assert [[each["Id"] for each in one["Entries"]] for one in requests] == [["0", "1", "2", "3"], ["1"], ["1"]]


def test_batches_before_a_rejected_request_count_as_sent(messages: SqsMessages) -> None:
    messages.url("mail")
    requests = answers(messages, {}, ServerBusy("slow down"))
    errors = messages.send("mail", [(payload(n), 0) for n in range(25)])
    assert [type(why) for why in errors] == [type(None)] * 10 + [ServerBusy] * 15
    assert len(requests) == 2
    answers(messages, ServerRefused("InvalidMessageContents: #x"), {}, ConnectionLost("broke"))
    errors = messages.send("mail", [(payload(n), 0) for n in range(4)])
    assert [type(why) for why in errors] == [type(None)] * 2 + [ConnectionLost] * 2


def test_a_message_missing_in_the_reply_does_not_count_as_sent(messages: SqsMessages) -> None:
    messages.url("mail")
    answers(messages, {"Successful": [{"Id": "0"}]})
    errors = messages.send("mail", [(payload(n), 0) for n in range(2)])
    assert [type(why) for why in errors] == [type(None), ConnectionLost]


def test_a_message_that_keeps_failing_is_an_error(messages: SqsMessages) -> None:
    messages.url("mail")
    busy = {"Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}
    requests = answers(messages, busy, busy, busy)
    (why,) = messages.send("mail", [(payload(1), 0)])
    assert isinstance(why, ServerBusy)
    assert len(requests) == 3


def test_a_received_message_is_hidden_until_it_is_answered(messages: SqsMessages) -> None:
    messages.send("mail", [(payload(1), 0)])
    held = messages.receive("mail", 30)
    assert held is not None
    assert (held.body, held.received) == (payload(1), 1)
    assert messages.receive("mail", 30) is None
    assert messages.hide("mail", held.handle, 0)
    again = messages.receive("mail", 30)
    assert again is not None
    assert (again.id, again.received) == (held.id, 2)
    messages.hide_many("mail", [again.handle], 60)
    assert messages.delete("mail", again.handle)
    assert messages.hide("mail", again.handle, 0) is False
    assert messages.counts("mail") == QueueCounts(0, 0, 0)


def test_a_signal_ends_a_long_poll_and_the_next_call_works(messages: SqsMessages) -> None:
    read_end, write_end = os.pipe()
    try:
        threading.Timer(0.2, os.write, (write_end, b"x")).start()
        with pytest.raises(Woken):
            messages.receive("mail", 30, seconds=20, wake=read_end)
        assert messages.counts("mail").ready == 0
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_message_ends_a_long_poll(messages: SqsMessages, sqs: Sqs) -> None:
    client = sqs.client()
    url = messages.url("mail")
    threading.Timer(0.2, lambda: client.send_message(QueueUrl=url, MessageBody="{}")).start()
    held = messages.receive("mail", 30, seconds=20)
    client.close()
    assert held is not None
    assert held.body == b"{}"


def test_the_error_for_a_missing_queue_names_it(messages: SqsMessages, sqs: Sqs) -> None:
    with pytest.raises(NoSuchQueue, match=r"queue 'nope' does not exist: .*create-queue --queue-name nope"):
        messages.url("nope")
    messages.url("mail")
    sqs.reset()  # deletes the queue
    with pytest.raises(NoSuchQueue, match=r"queue 'mail' does not exist: .*create-queue --queue-name mail"):
        messages.counts("mail")


def test_jobs_of_a_fifo_queue_have_a_group_and_are_received_once(messages: SqsMessages) -> None:
    first_job = payload(1, createdAt=1, tags=["group:order 7"])
    jobs = [first_job, first_job, payload(2, createdAt=1), payload(3)]
    assert messages.send("mail.fifo", [(each, 0) for each in jobs]) == [None] * 4
    assert messages.counts("mail.fifo").ready == 3
    first, second = messages.receive("mail.fifo", 30), messages.receive("mail.fifo", 30)
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (jobs[0], jobs[2])
    assert messages.receive("mail.fifo", 30) is None, "the third job waits for the second of the same group"
    assert messages.send("mail.fifo", [(payload(3), 0)]) == [None]
    assert messages.counts("mail.fifo").ready == 2, "without createdAt it may be a retry: better twice than never"


def test_a_hung_server_is_a_lost_connection_and_a_missing_one_is_unreachable(messages: SqsMessages, sqs: Sqs) -> None:
    messages.url("mail")
    messages.service.http.timeout = 0.3
    with sqs.suspended():
        error = eventually(lambda: refusal(messages))
    assert (type(error), "no answer in time" in str(error)) == (ConnectionLost, True)
    gone = SqsMessages(Service(SqsUrl(f"{URL}http://127.0.0.1:1")))
    with pytest.raises(Unreachable, match=r"127.0.0.1:1 does not answer: connection refused"):
        gone.url("mail")


def test_missing_credentials_are_a_one_line_error(sqs: Sqs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nowhere")
    with pytest.raises(WrongPassword, match=r"no credentials for SQS at .*: give them by AWS_ACCESS_KEY_ID"):
        SqsMessages(Service(SqsUrl(f"{URL}{sqs.endpoint}"))).url("mail")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDeniedException", 403, WrongPassword),
        ("ExpiredTokenException", 403, WrongPassword),
        ("InvalidClientTokenId", 403, WrongPassword),
        ("RequestThrottled", 400, ServerBusy),
        ("ThrottlingException", 400, ServerBusy),
        ("ServiceUnavailable", 503, ServerBusy),
        ("Whatever", 502, ServerBusy),
        ("QueueDoesNotExist", 400, NoSuchQueue),
        ("UnsupportedOperation", 400, ServerRefused),
    ],
)
def test_error_codes_map_to_exception_classes(code: str, status: int, kind: type[Exception]) -> None:
    from botocore.exceptions import ClientError

    reply: Any = {"Error": {"Code": code, "Message": "so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = Service(SqsUrl("sqs://eu-west-1")).classified(ClientError(reply, "ReceiveMessage"))
    assert type(error) is kind
    assert code in str(error)
