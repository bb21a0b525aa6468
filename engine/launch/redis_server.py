"""The Redis server of a queue shared by machines: connection, settings, and readable errors.

Messages show only the address of a server, never the user and password in its URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from ...configs.sections.online import OnlineConfig
from .trainer import Fact

INSTALL = "pip install 'grpo-tui[redis]'"
TIMEOUT_S = 5.0
"""A server that does not answer within this time is unreachable."""
OLDEST = (6, 2)


class RedisMissing(ImportError):
    """The client library is not installed. The message shows how to install it."""


def address(url: str) -> str:
    """Return the URL without user, password and options."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return "the URL"
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def queue_url(online: OnlineConfig) -> str:
    """Return the URL of the server that `online.queue` or `online.queue_env` names. Raises ValueError."""
    if online.queue_env is None:
        return online.queue
    url = os.environ.get(online.queue_env, "")
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        problem = "contains no Redis URL" if url else "is not set"
        raise ValueError(f"online.queue_env names the environment variable {online.queue_env}, which {problem}")
    return url


def connect(url: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Return a `redis.Redis` without contacting the server. It never retries, because some commands must not repeat.

    The return type is `Any`, because `redis` also types every result as an awaitable. Raises RedisMissing, and
    ValueError for an invalid URL.
    """
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise RedisMissing(f"a queue on Redis needs its client: {INSTALL}") from error
    try:
        return Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="grpo-tui",
        )
    except (ValueError, TypeError):
        raise ValueError(f"{address(url)} does not match redis://[USER:PASSWORD@]HOST:PORT/NUMBER") from None


def in_words(url: str, error: Exception) -> str:
    """Describe a failed command or connection in one sentence."""
    from redis import exceptions as redis

    text = str(error).rpartition(" of pipeline caused error: ")[2]
    wrong_key = (redis.AuthenticationError, redis.AuthenticationWrongNumberOfArgsError)
    denied = "does not allow this user the commands of a queue"
    known = (  # kinds of errors, beginnings of messages, and what they mean; the first that fits counts
        (wrong_key, ("NOAUTH", "WRONGPASS"), "refuses the password or the user"),
        ((), "EXEC without MULTI", f"{denied} (no permission to run 'multi')"),
        (redis.NoPermissionError, "Transaction discarded because of: NOPERM", f"{denied} ({text})"),
        (redis.BusyLoadingError, (), "is still loading its data"),
        (redis.TimeoutError, (), "does not answer"),
        (redis.ConnectionError, (), f"cannot be reached ({text.rstrip('.')})"),
        (redis.OutOfMemoryError, "OOM", "is full: give it more memory (maxmemory)"),
        (redis.ReadOnlyError, (), "is a replica that takes no writes: name its primary"),
        ((), "MISCONF", "takes no writes because it cannot save to its disk"),
        (Exception, (), f"refuses ({text})"),
    )
    meaning = next(words for kinds, starts, words in known if isinstance(error, kinds) or text.startswith(starts))
    return f"The Redis server {address(url)} {meaning}."


def server_facts(client: Any, url: str) -> list[Fact]:
    """Return facts about a server's version, eviction and persistence. Raises redis.RedisError.

    Settings that the server does not report are not judged: some hosted servers report none.
    """
    from redis.exceptions import ResponseError

    server = f"Redis server {address(url)}"
    info = client.info()
    with client.pipeline() as pipe:  # without permission for MULTI, the commands of a transaction would run one by one
        pipe.ping().execute()
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    facts = [Fact("good", f"{server} is version {version}")]
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        facts = [Fact("missing", f"{server} is version {version}", f"install {oldest} or later there")]
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        text = f"{server} deletes data when its memory is full (maxmemory-policy {policy})"
        facts.append(Fact("missing", text, "set maxmemory-policy noeviction there"))
    try:
        settings = client.config_get("save") | client.config_get("appendfsync")
    except ResponseError:
        settings = {}
    facts.append(_persistence(server, bool(info.get("aof_enabled")), settings))
    return facts


def _persistence(server: str, append_only: bool, settings: dict[str, str]) -> Fact:
    advice = "set appendonly yes there, and appendfsync always"
    if append_only:
        if settings.get("appendfsync", "always") == "always":
            return Fact("good", f"{server} writes to disk before it answers")
        return Fact(
            "note", f"{server} may lose its last second in a power cut", "appendfsync always there to lose nothing"
        )
    if settings.get("save") == "":
        return Fact("note", f"{server} stores nothing on disk: a restart loses waiting tasks", advice)
    return Fact("note", f"{server} saves its data only periodically: a crash loses the last minutes", advice)


def check_redis(url: str) -> Iterator[Fact]:
    """Yield the lines of `grpo-tui doctor` about a server."""
    try:
        client = connect(url)
    except (RedisMissing, ValueError) as problem:
        yield Fact("missing", str(problem))
        return
    from redis.exceptions import RedisError

    try:
        yield from server_facts(client, url)
    except RedisError as error:
        yield Fact("missing", in_words(url, error).rstrip("."))
    finally:
        client.close()
