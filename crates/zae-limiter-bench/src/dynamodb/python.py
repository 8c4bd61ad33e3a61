"""Acquires with the Python package for as long as it is told: one order per line of JSON in, one answer per line out."""

import asyncio
import importlib.metadata
import json
import random
import sys
import time
import warnings

from zae_limiter import RateLimiter, Repository, SyncRateLimiter, SyncRepository

warnings.simplefilter("ignore")

what = json.loads(sys.stdin.readline())
where = {"stack": what["stack"], "region": what["region"], "endpoint_url": what["endpoint"], "config_cache_ttl": 86400}
dice = random.Random(1)


def answer(value):
    print(json.dumps(value), flush=True)


def measured(started, cpu, latencies):
    wall, cpu = time.perf_counter_ns() - started, time.process_time_ns() - cpu
    answer({"ops": len(latencies), "wall_ns": wall, "cpu_ns": cpu, "latencies_ns": latencies})


async def calls_until(limiter, until, latencies):
    before = time.perf_counter_ns()
    while before < until:
        async with limiter.acquire(dice.choice(what["keys"]), what["resource"], what["amounts"]):
            pass
        now = time.perf_counter_ns()
        latencies.append(now - before)
        before = now


async def with_asyncio():
    limiter = RateLimiter(repository=await Repository.connect("default", **where))
    answer({"version": importlib.metadata.version("zae-limiter")})
    for line in sys.stdin:
        latencies, cpu, started = [], time.process_time_ns(), time.perf_counter_ns()
        until = started + float(line) * 1e9
        await asyncio.gather(*(calls_until(limiter, until, latencies) for _ in range(what["tasks"])))
        measured(started, cpu, latencies)


def with_threads():
    limiter = SyncRateLimiter(repository=SyncRepository.connect("default", **where))
    answer({"version": importlib.metadata.version("zae-limiter")})
    for line in sys.stdin:
        latencies, cpu, started = [], time.process_time_ns(), time.perf_counter_ns()
        until = started + float(line) * 1e9
        before = started
        while before < until:
            with limiter.acquire(dice.choice(what["keys"]), what["resource"], what["amounts"]):
                pass
            now = time.perf_counter_ns()
            latencies.append(now - before)
            before = now
        measured(started, cpu, latencies)


if what["flavour"] == "async":
    asyncio.run(with_asyncio())
else:
    with_threads()
