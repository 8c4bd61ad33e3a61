"""The Python package, told what to do by the tests: one expression per line of JSON in, one answer per line out.

An expression sees what an application sees, `repo` (a SyncRepository), `limiter` (a SyncRateLimiter), the package's own
names, and the functions below. An exception is an answer too.
"""

import dataclasses
import datetime
import enum
import importlib.metadata
import json
import sys
import threading
import time
import warnings

import zae_limiter
from zae_limiter import *  # noqa: F403 - expressions use them
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.schedule import ScheduleEntry  # noqa: F401 - expressions use it
from zae_limiter.version import CURRENT_SCHEMA_VERSION

warnings.simplefilter("ignore")

WHO = "python"

stack, region, endpoint = "", "us-east-1", ""
repo = limiter = None


def make_table():
    """A table as the Python package makes it, with what its deployment writes into it."""
    maker = SyncRepository(name=stack, region=region, endpoint_url=endpoint)
    maker.create_table()
    maker.register_namespace("default")
    maker.set_version_record(CURRENT_SCHEMA_VERSION, lambda_version=version(), updated_by=WHO)
    maker.close()


def connect(namespace="default", config_cache_ttl=0, rejection_cache_ttl=0.0):
    """As an application does; without caches, so that the tests need not wait for them."""
    global repo, limiter
    repo = SyncRepository.connect(
        namespace,
        stack=stack,
        region=region,
        endpoint_url=endpoint,
        config_cache_ttl=config_cache_ttl,
        rejection_cache_ttl=rejection_cache_ttl,
    )
    limiter = SyncRateLimiter(repository=repo)


def version():
    return importlib.metadata.version("zae-limiter")


def set_clock(now_ms):
    """From now on it is this late; None gives the real time back."""
    if now_ms is None:
        repo.__dict__.pop("_now_ms", None)
    else:
        repo._now_ms = lambda: now_ms


def take(entity, resource, consume, adjust=None, fail=False, limits=None):
    """One lease: true when granted, false when a limit refused it. Other refusals are exceptions."""
    try:
        with limiter.acquire(entity, resource, consume, limits=limits) as lease:
            if adjust:
                lease.adjust(**adjust)
            if fail:
                raise Oops
    except Oops:
        pass
    except RateLimitExceeded:
        return False
    return True


class Oops(Exception):
    """What makes a lease give back."""


def drain(entity, resource, limit, threads=1, seconds=None, most=None, tokens=1):
    """Takes until refused, one token at a time or so many, or for a time. How many takes there were."""
    until = None if seconds is None else time.monotonic() + seconds
    granted = [0] * threads

    def work(index):
        while (until is None or time.monotonic() < until) and (most is None or granted[index] < most):
            try:
                with limiter.acquire(entity, resource, {limit: tokens}):
                    granted[index] += 1
            except RateLimitExceeded as refusal:
                if getattr(refusal, "contended", False):
                    continue
                if until is None:
                    return
                time.sleep(0.005)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(granted)


def plain(value):
    """As JSON has it."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return repr(value)


def main():
    global stack, endpoint
    stack, endpoint = sys.argv[1], sys.argv[2]
    print(json.dumps({"ok": version()}), flush=True)
    for line in sys.stdin:
        try:
            answer = {"ok": eval(json.loads(line), globals())}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer, default=plain), flush=True)


main()
