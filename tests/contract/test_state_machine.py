"""The protocol as a state machine: in any order of events, no job is lost, doubled or counted wrongly. Mutation tests give
each script one mistake, which the state machine must notice.

QD_TEST_RUNS: the number of runs of up to thirty events; the long test (`make soak`) has 5,000 runs of up to eighty.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from qd.drivers.keyspace.base import Script, script
from tests.contract.machine import Machine
from tests.support.servers.redis import Server


@pytest.mark.fault(
    "32",
    "a model of the queue's protocol next to the real one: three workers, a keeper, killed masters, a PHP worker",
    "each job in one place, counted right, with one owner; a query concurrent with a change returns a correct answer",
)
@pytest.mark.xdist_group("invariants")
@pytest.mark.parametrize(
    ("runs", "steps"),
    [
        pytest.param(int(os.environ.get("QD_TEST_RUNS", "200")), 30, id="30 steps"),
        pytest.param(int(os.environ.get("QD_TEST_RUNS", "5000")), 80, id="80 steps", marks=pytest.mark.slow),
    ],
)
def test_no_order_of_events_loses_or_doubles_a_job(server: Server, runs: int, steps: int):
    machine = Machine.at(server.socket)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=runs,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        machine.close()


# --- mutation tests


class Mutant(NamedTuple):
    script: str
    changes: dict[str, str]  # text of the script -> its replacement


MUTANTS = {
    "a renewal without XX, which creates a lease": Mutant("beat", {"'XX', 'CH', unpack": "'CH', unpack"}),
    "a renewal after the reclaim": Mutant("beat", {"each(renew) or each(reclaim)": "each(reclaim) or each(renew)"}),
    "a reclaim that leaves the reservation": Mutant("beat", {"    redis.call('ZREM', KEYS[i + 1], payload)\n": ""}),
    "a migrate in two steps, removed before it is added": Mutant(
        "beat",
        {
            "    to_ready(i, payloads)\n    redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 0, #payloads - 1)\n": (
                "    redis.call('ZREMRANGEBYRANK', KEYS[i + 2], 0, #payloads - 1)\n    to_ready(i, payloads)\n"
            )
        },
    ),
    "a beat that adds no tokens": Mutant("beat", {" or each(tokens)": ""}),
    "a pop before the payload is read": Mutant(
        "turn",
        {
            "  if most > 0 and #p > most and not foreign(p) then\n": (
                "  redis.call('LPOP', list)\n  if most > 0 and #p > most and not foreign(p) then\n"
            ),
            "  if type(step) ~= 'table' then step = pop(list, p, head) end\n": "",
        },
    ),
    "a reserve that pops nothing": Mutant(
        "turn", {"if head then return redis.pcall('LPOP', list) end": "if head then return 0 end"}
    ),
    "a usual turn that pops nothing": Mutant("turn", {"step = redis.pcall('LPOP', KEYS[1])": "step = 1"}),
    "a reserve without an owner": Mutant(
        "turn", {"  else step = redis.pcall('HSET', owners, owner, text) end\n": "  end\n"}
    ),
    "a usual turn without an owner": Mutant("turn", {"step = redis.pcall('HSET', KEYS[5], ARGV[6], text)": "step = 1"}),
    "repeated marks": Mutant("turn", {"local mark = base .. '.1'": "local mark = 'Tok3nTok3n.1.1.1'"}),
    "a turn that does not check its ack": Mutant(
        "turn",
        {
            "  acked = redis.pcall('ZREM', KEYS[2]": "  acked = 1 redis.pcall('ZREM', KEYS[2]",
            "  acked = acked or redis.pcall(": "  acked = 1 redis.pcall(",
        },
    ),
    "a turn that does not ack": Mutant(
        "turn",
        {
            "  acked = redis.pcall('ZREM', KEYS[2], ARGV[9])\n": "  acked = 1\n",
            "  acked = acked or redis.pcall('ZREM', KEYS[acks_at + 2], ARGV[9])\n": "  acked = 1\n",
        },
    ),
    "a turn that reserves a second job": Mutant(
        "turn", {"i ~= acks_at and redis.pcall('HGET', KEYS[i + 5], owner)": "false"}
    ),
    "a late turn that removes the owner of the next job": Mutant(
        "turn",
        {"  if acked == 0 and redis.pcall('HGET', KEYS[acks_at + 5], owner) ~= ARGV[9] then acks_at = nil end\n": ""},
    ),
    "a turn with lanes that ignores the fence": Mutant(
        "lanes", {"if known and tonumber(known) > tonumber(ARGV[7]) then return {-2} end\n": ""}
    ),
    "a turn with lanes that does not write the fence": Mutant(
        "lanes", {"  if owners == fenced then return {field, last} end\n": "  if owners == fenced then return {} end\n"}
    ),
    "a query of lanes without a fence": Mutant(
        "held_lanes", {"then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end": "then end"}
    ),
    "a put-back of jobs whose lease was lost": Mutant(
        "lanes",
        {
            "if group.there[k - group.at + 1] then": "if true then",
            "  redis.call('ZREM', KEYS[i + 2], unpack(group.members))\n  if": (
                "  redis.call('ZREM', KEYS[i + 2], '', unpack(group.members))\n  if"
            ),
        },
    ),
    "a put-back in the wrong order": Mutant(
        "lanes", {"for k = group.at + n - 1, group.at, -1 do": "for k = group.at, group.at + n - 1 do"}
    ),
    "a put-back that keeps the reservation": Mutant(
        "lanes", {"  redis.call('ZREM', KEYS[i + 2], unpack(group.members))\n  if": "  if"}
    ),
    "a turn with lanes that pops too few": Mutant("lanes", {"redis.pcall('LTRIM', ready, n, -1)": "{}"}),
    "a turn with lanes that keeps old owners": Mutant(
        "lanes", {"  if #names > 0 then redis.pcall('HDEL', KEYS[i + 5], unpack(names)) end\n": ""}
    ),
    "a turn with lanes that removes new owners": Mutant(
        "lanes", {"  for k = 1, cleared[i] and 2 * n or 0, 2 do cleared[i][pairs_of[k]] = nil end\n": ""}
    ),
    "a settlement without a check": Mutant(
        "settle_lanes", {"if redis.call('ZSCORE', KEYS[2], member) then": "if true then"}
    ),
    "a settlement that reverses": Mutant("settle_lanes", {"for k = #owners, 1, -1 do": "for k = 1, #owners do"}),
    "a settlement that keeps the reservation": Mutant(
        "settle_lanes", {"if #gone > 0 then redis.call('ZREM', KEYS[2], unpack(gone)) end\n": ""}
    ),
    "a job beside others that counts a crash": Mutant(
        "lanes", {"if tonumber(string.match(mark, '%.(%d+)')) < 256 then crashes": "if true then crashes"}
    ),
    "a crash that costs an attempt": Mutant("turn", {"string.match(mark, '%.0?(%d+)$') == attempts": "false"}),
    "an ack without a check": Mutant("ack", {"return held and 1 or 0": "return 1"}),
    "a release without a check": Mutant(
        "release", {"if not redis.call('ZSCORE', KEYS[2], member) then": "if false then"}
    ),
    "a release that keeps the reservation": Mutant("release", {"redis.call('ZREM', KEYS[2], member)\n": ""}),
    "a checkpoint without a check": Mutant("checkpoint", {"if not lease then return 0 end": "lease = lease or '99'"}),
    "a checkpoint that keeps the old text": Mutant("checkpoint", {"redis.call('ZREM', KEYS[1], old)\n": ""}),
    "a checkpoint that does not update the owner": Mutant(
        "checkpoint", {"redis.call('HSET', KEYS[2], owner, new)\n": ""}
    ),
    "a checkpoint that changes the lease": Mutant("checkpoint", {"'ZADD', KEYS[1], lease": "'ZADD', KEYS[1], '1'"}),
    "a bury without a check": Mutant(
        "bury", {"local held = redis.call('ZSCORE', KEYS[1], ARGV[2])": "local held = true"}
    ),
    "a bury that keeps the reservation": Mutant("bury", {"  redis.call('ZREM', KEYS[1], ARGV[2])\n": ""}),
}


# Where the usual random numbers of Hypothesis come upon the mistake late, others that do so early. They save time only: with
# any of them the mistake must be found.
SEEDS = {
    "a bury without a check": 3,
    "a job beside others that counts a crash": 8,
    "a migrate in two steps, removed before it is added": 3,
    "a put-back in the wrong order": 2,
    "a put-back of jobs whose lease was lost": 8,
    "a reclaim that leaves the reservation": 1,
    "a settlement that keeps the reservation": 2,
    "a settlement that reverses": 4,
    "a turn with lanes that keeps old owners": 2,
    "a turn with lanes that removes new owners": 2,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_a_script_is_noticed(name: str, server: Server, monkeypatch: pytest.MonkeyPatch):
    real = script(MUTANTS[name].script)
    text = real.text
    for old, new in MUTANTS[name].changes.items():
        assert text.count(old) == 1, f"the script has changed: where is {old!r}?"
        text = text.replace(old, new)
    for attribute, value in vars(Script(real.name, text)).items():
        monkeypatch.setattr(real, attribute, value)
    machine = Machine.at(server.socket)
    setattr(machine, "_hypothesis_internal_use_seed", SEEDS.get(name))  # noqa: B010  # as @seed sets it
    try:
        with pytest.raises(AssertionError):
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=600,
                    stateful_step_count=30,
                    phases=[Phase.generate],
                    derandomize=True,
                    deadline=None,
                    database=None,
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        machine.close()
