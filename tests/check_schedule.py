#!/usr/bin/env python3
"""Checks printed schedules. Written from the theory alone; it shares no code with Verbcast.

Input, on standard input or in a FILE, is JSON lines. A line with "ranks" says what follows:

    {"op":"broadcast","algorithm":"chain","ranks":9,"root":0,"blocks":4,"ports":1,"rounds":32}

and every further line, up to the next of that kind, is one step of one rank:

    {"rank":3,"round":2,"op":"send","peer":7,"block":4}

"algorithm", "ports" (1), "radix" (2) and "rounds" may be left out of the first; "port" (0) of the second.
With -n N and its friends the first line is not needed, and the input is one schedule.

What is verified of each schedule, in rounds, with nothing but sets:

 1. every number is an integer within its range, and no rank names itself;
 2. a rank's rounds never go back, and its lines are all in one place;
 3. each send has its receive in the same round on the same port, and the reverse;
 4. a rank sends only blocks that it held before the round began;
 5. no rank receives a block that it has, or the same block twice;
 6. in a round a rank sends at most one message on each port, and receives at most one;
    a message is a run of adjacent lines with one round, direction, peer and port;
 7. messages are one block long where the algorithm is a pipeline;
 8. at the end every rank holds what the operation promises;
 9. the rounds are those claimed, and those of the formula where theory has one.

Exit status: 0 all schedules are right, 1 one is wrong (the first fault is printed), 2 wrong usage.
"""

import argparse
import json
import sys


class Fault(Exception):
    """What is wrong with a schedule, with its place."""


def ceil_div(a, b):
    return -(-a // b)


def ceil_log(base, n):
    """The least m with base ** m >= n."""
    power, m = 1, 0
    while power < n:
        power, m = power * base, m + 1
    return m


def knomial_rounds(n, k, d, r):
    m = ceil_log(r, n)
    top = ceil_div(n, r ** (m - 1)) - 1
    return k * (ceil_div(top, d) + (m - 1) * ceil_div(r - 1, d))


def formula(claim):
    """The rounds that theory gives, or None where it gives none in closed form."""
    n, k, d = claim["ranks"], claim["blocks"], claim["ports"]
    if n == 1:
        return 0
    q = ceil_log(2, n)
    on_a_port = ceil_div(k, d)  # d ports: block b on port b mod d
    if claim["op"] != "broadcast":
        return {
            ("allgather", "ring"): (n - 1) * k,
            ("scatter", "flat"): ceil_div(n - 1, d) * k,
            ("gather", "flat"): ceil_div(n - 1, d) * k,
        }.get((claim["op"], claim["algorithm"])) if k == 1 and d == 1 else None
    return {
        "flat": ceil_div(n - 1, d) * k,
        "chain": (n - 1) * on_a_port,
        "pipelined-chain": n + on_a_port - 2,
        "binomial": q * on_a_port,
        "knomial": knomial_rounds(n, k, d, claim["radix"]),
        "pipelined-binomial": q * on_a_port,
        "pipelined-tree": q + on_a_port - 1,
        "bidirectional-ring": ceil_div(n - 1, 2) + k - 1 if d == 2 else None,
        "pipelined-binary": 2 * k + 2 * q - 4 if d == 1 and n == 2**q and q >= 3 else None,
    }.get(claim["algorithm"])


ONE_BLOCK_MESSAGES = {
    "pipelined-chain",
    "pipelined-binary",
    "pipelined-binomial",
    "two-tree",
    "pipelined-tree",
    "bidirectional-ring",
}


def parts(claim, rank):
    """The blocks that are the rank's own part of a scatter, gather or allgather."""
    k = claim["blocks"]
    return range(rank * k, (rank + 1) * k)


def at_start(claim):
    """What each rank holds at the start, a list of sets."""
    n, root, op = claim["ranks"], claim["root"], claim["op"]
    if op in ("broadcast", "scatter"):
        held = [set() for _ in range(n)]
        held[root] = set(range(block_count(claim)))
        return held
    return [set(parts(claim, rank)) for rank in range(n)]


def at_end(claim, rank):
    """What the rank must hold at the end."""
    if claim["op"] in ("broadcast", "allgather") or claim["op"] == "gather" and rank == claim["root"]:
        return range(block_count(claim))
    return parts(claim, rank)


def block_count(claim):
    return claim["blocks"] * (1 if claim["op"] == "broadcast" else claim["ranks"])


class Schedule:
    """One schedule, fed line by line, then checked as a whole."""

    def __init__(self, claim):
        self.claim = claim
        self.finished = set()
        self.rank = None
        self.last = None  # the key of the message that the last line belongs to
        self.message_blocks = 0
        self.ports_used = set()  # of this rank: (round, direction, port)
        # By round: the sends, then the receives, each (from, to, block, port).
        self.rounds = {}

    def add(self, step):
        claim = self.claim
        rank, round_, peer, block = (step[name] for name in ("rank", "round", "peer", "block"))
        port, op = step.get("port", 0), step["op"]
        for name, value, limit in (
            ("rank", rank, claim["ranks"]),
            ("peer", peer, claim["ranks"]),
            ("block", block, block_count(claim)),
            ("port", port, claim["ports"]),
            ("round", round_, 1 << 62),
        ):
            if type(value) is not int or not 0 <= value < limit:
                raise Fault(f"{name} {value!r} is not an integer from 0 to {limit - 1}")
        if op not in ("send", "recv"):
            raise Fault(f"op {op!r} is neither send nor recv")
        if rank == peer:
            raise Fault(f"rank {rank} names itself")
        if rank != self.rank:
            if rank in self.finished:
                raise Fault(f"rank {rank} comes up a second time")
            self.finished.add(rank)
            self.rank, self.last, self.ports_used = rank, None, set()
        key = (round_, op, peer, port)
        if self.last is not None and round_ < self.last[0]:
            raise Fault(f"rank {rank} goes back from round {self.last[0]} to {round_}")
        if key == self.last:
            self.message_blocks += 1
            if claim["algorithm"] in ONE_BLOCK_MESSAGES:
                raise Fault(f"a message of {self.message_blocks} blocks in a pipeline")
        else:
            if (round_, op, port) in self.ports_used:
                raise Fault(f"rank {rank}: a second {op} in round {round_} on port {port}")
            if self.last is not None and round_ != self.last[0]:
                self.ports_used.clear()
            self.ports_used.add((round_, op, port))
            self.last, self.message_blocks = key, 1
        sends, receives = self.rounds.setdefault(round_, ([], []))
        if op == "send":
            sends.append((rank, peer, block, port))
        else:
            receives.append((peer, rank, block, port))

    def check(self):
        claim = self.claim
        held = at_start(claim)
        for round_ in sorted(self.rounds):
            sends, receives = self.rounds[round_]
            odd = set(sends) ^ set(receives)
            if odd:
                sender, receiver, block, port = min(odd)
                raise Fault(
                    f"round {round_}: block {block} from rank {sender} to rank {receiver} on port "
                    f"{port} is known to one side only"
                )
            if len(sends) != len(set(sends)) or len(receives) != len(set(receives)):
                raise Fault(f"round {round_} has a line twice")
            for sender, _, block, _ in sends:
                if block not in held[sender]:
                    raise Fault(f"round {round_}: rank {sender} sends block {block} before it has it")
            for _, receiver, block, _ in receives:
                if block in held[receiver]:
                    raise Fault(f"round {round_}: rank {receiver} gets block {block} again")
                held[receiver].add(block)
        for rank in range(claim["ranks"]):
            missing = set(at_end(claim, rank)) - held[rank]
            if missing:
                raise Fault(f"rank {rank} never gets block {min(missing)}")
        counted = max(self.rounds, default=-1) + 1
        for source, rounds in (("claimed", claim["rounds"]), ("in theory", formula(claim))):
            if rounds is not None and rounds != counted:
                raise Fault(f"{counted} rounds, {rounds} {source}")


DEFAULTS = {"op": "broadcast", "algorithm": None, "root": 0, "blocks": 1, "ports": 1, "radix": 2, "rounds": None}
OPS = ("broadcast", "scatter", "gather", "allgather")


def completed(claim):
    claim = {**DEFAULTS, **claim}
    for name, least in (("ranks", 1), ("root", 0), ("blocks", 1), ("ports", 1), ("radix", 2)):
        if type(claim[name]) is not int or claim[name] < least:
            raise Fault(f"{name} {claim[name]!r} is not an integer from {least}")
    if claim["op"] not in OPS or claim["root"] >= claim["ranks"]:
        raise Fault(f"no such operation or root: {claim}")
    return claim


def title(claim):
    names = ("op", "algorithm", "ranks", "root", "blocks", "ports", "radix")
    return " ".join(f"{name}={claim[name]}" for name in names)


def run(lines, claim):
    """Checks every schedule of the input; gives how many there were."""
    schedule = Schedule(claim) if claim else None
    number = count = 0
    try:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise Fault(f"no JSON: {error}") from None
            if type(record) is not dict:
                raise Fault("no JSON object")
            if "ranks" in record:
                if schedule:
                    schedule.check()
                    count += 1
                schedule = Schedule(completed(record))
            elif schedule is None:
                raise Fault("a step before it was said what for")
            else:
                missing = {"rank", "round", "op", "peer", "block"} - set(record)
                if missing:
                    raise Fault(f"no {min(missing)!r} in the step")
                schedule.add(record)
        if schedule is None:
            raise Fault("no schedule")
        schedule.check()
    except Fault as fault:
        what = title(schedule.claim) if schedule else "input"
        raise Fault(f"{what}: line {number}: {fault}") from None
    return count + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", help="the JSON lines; standard input if it is left out")
    parser.add_argument("-n", "--ranks", type=int)
    parser.add_argument("--op", choices=OPS, default="broadcast")
    parser.add_argument("--algorithm")
    parser.add_argument("--root", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--ports", type=int, default=1)
    parser.add_argument("--radix", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    arguments = vars(parser.parse_args())
    name = arguments.pop("file")
    try:
        claim = completed(arguments) if arguments["ranks"] is not None else None
    except Fault as fault:
        parser.error(str(fault))
    try:
        with open(name, encoding="utf-8") if name else sys.stdin as lines:
            count = run(lines, claim)
    except OSError as error:
        parser.error(str(error))
    except Fault as fault:
        print(f"wrong: {fault}")
        return 1
    print(f"right: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
