"""Tenuto's SQL function `tenuto.enqueue` for `enqueue`, as a trigger or another language calls it."""

from __future__ import annotations

import argparse
import time

import asyncpg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.start_counters import make_payload

ONE = "SELECT tenuto.enqueue('noop', jsonb_build_object('payload', $1::text))"
MANY = "SELECT tenuto.enqueue('noop', jsonb_build_object('payload', payload)) FROM unnest($1::text[]) AS payload"


async def enqueue(url: str, count: int, *, bulk: bool) -> None:
    """Enqueue one job per statement and transaction, or a thousand; answer with the seconds."""
    payloads = [make_payload(number) for number in range(count)]
    connection = await asyncpg.connect(url)
    began = time.monotonic_ns()
    if bulk:
        for texts in contender_protocol.in_transactions(payloads):
            await connection.fetch(MANY, texts)
    else:
        for text in payloads:
            await connection.fetchval(ONE, text)
    contender_protocol.print_answer(seconds=(time.monotonic_ns() - began) / 1e9)
    await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["bulk", "single"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    asked = parser.parse_args()
    contender_protocol.run(enqueue(asked.url, asked.count, bulk=asked.verb == "bulk"))


if __name__ == "__main__":
    main()
