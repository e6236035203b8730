"""Write a Counterfoil block in Python.

    from counterfoil import block, http

    def charge(order):
        return http.post("/charges", connection="payments", key="charge", json=order).json()

    Step = block({"name": "charge-card", "effects": [...]}, charge)

The descriptor is that of `docs/block-author.md`.
"""

import json as _json
import traceback
from datetime import datetime, timezone

from componentize_py_types import Err
from wit_world.exports import step
from wit_world.imports import context as _host
from wit_world.imports import effects


class Failure(Exception):
    """A failure of the block itself. A transient one waits for another attempt; every other exception is permanent."""

    def __init__(self, code, message, transient=False, retry_after_ms=None):
        super().__init__(message)
        self.code = code
        self.transient = transient
        self.retry_after_ms = retry_after_ms


class EffectError(Failure):
    """An effect that is known not to have taken place. An answer that refuses is in `answer`."""

    _KINDS = {
        effects.Failure_Denied: "denied",
        effects.Failure_NotSent: "not_sent",
        effects.Failure_Rejected: "rejected",
        effects.Failure_NoAnswer: "no_answer",
        effects.Failure_ResponseTooLarge: "response_too_large",
        effects.Failure_Limit: "limit",
    }

    def __init__(self, failure):
        kind, value = self._KINDS[type(failure)], failure.value
        self.answer = None if isinstance(value, str) else Answer(value)
        message = value if self.answer is None else f"the receiver answered {self.answer.status}"
        again = kind in ("not_sent", "no_answer") or (kind == "rejected" and value.status in (425, 429, 503))
        super().__init__(kind, message, transient=again)


class Answer:
    """An HTTP answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.body
        self.truncated = response.truncated

    def header(self, name):
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)

    def text(self):
        return self.body.decode()

    def json(self):
        return _json.loads(self.body)


def _perform(request, key=None, connection=None, safety=None, idempotency_key=None, timeout_ms=None, extra=()):
    safety = None if safety is None else effects.Safety[safety.upper().replace("-", "_")]
    effect = effects.Effect(request, key, connection, safety, idempotency_key, timeout_ms, list(extra))
    try:
        answer = effects.perform(effect)
    except Err as error:
        raise EffectError(error.value) from None
    # An event that is emitted says nothing more.
    return getattr(answer, "value", None)


class http:
    """Calls of other systems. Options: `connection`, `key`, `safety`, `idempotency_key`, `timeout_ms`."""

    @staticmethod
    def request(method, url, headers=(), body=b"", json=None, **options):
        headers = list(dict(headers).items())
        if json is not None:
            headers.append(("content-type", "application/json"))
            body = _json.dumps(json)
        body = body.encode() if isinstance(body, str) else body
        return Answer(_perform(effects.Request_Http(effects.HttpRequest(method, url, headers, body)), **options))

    @staticmethod
    def get(url, **options):
        return http.request("GET", url, **options)

    @staticmethod
    def post(url, **options):
        return http.request("POST", url, **options)

    @staticmethod
    def put(url, **options):
        return http.request("PUT", url, **options)

    @staticmethod
    def patch(url, **options):
        return http.request("PATCH", url, **options)

    @staticmethod
    def delete(url, **options):
        return http.request("DELETE", url, **options)


def emit(event_type, data, record_id=None, key=None):
    """An event for the tenant's own outbox."""
    event = effects.Event(event_type, record_id, _json.dumps(data))
    _perform(effects.Request_Emit(event), key=key)


def worker(queue, input, claim_within_ms=None, **options):
    """What a worker outside the host came to: the step waits for it, and then the block is run again. Options: `key`,
    `safety`, `idempotency_key`, `timeout_ms`; `claim_within_ms` is the time that it may lie in its queue."""
    extra = () if claim_within_ms is None else [("claim-within-ms", str(claim_within_ms))]
    task = effects.WorkerTask(queue, _json.dumps(input))
    return _json.loads(_perform(effects.Request_Worker(task), extra=extra, **options))


class storage:
    """The tenant's own values, as JSON."""

    @staticmethod
    def get(name):
        value = _perform(effects.Request_Storage(effects.StorageRequest_Get(name)))
        return None if value is None else _json.loads(value)

    @staticmethod
    def put(name, value):
        _perform(effects.Request_Storage(effects.StorageRequest_Put((name, _json.dumps(value).encode()))))

    @staticmethod
    def delete(name):
        _perform(effects.Request_Storage(effects.StorageRequest_Delete(name)))


class context:
    """What a block may know: the same on every re-run. Take time and randomness from here."""

    @staticmethod
    def place():
        return _host.place()

    @staticmethod
    def started_at():
        return datetime.fromtimestamp(_host.started_at() / 1000, timezone.utc)

    @staticmethod
    def random(length):
        return _host.random(length)

    @staticmethod
    def log(level, message):
        _host.log(_host.Level[level.upper()], str(message))


def block(descriptor, run):
    """The exported `Step` of a block that answers `run(input)`."""

    class Step:
        def describe(self):
            return _json.dumps({"input": True, "output": True, **descriptor})

        def run(self, input):
            try:
                return _json.dumps(run(_json.loads(input)))
            except Failure as failure:
                reason = step.Reason(failure.code, str(failure))
                if failure.transient:
                    raise Err(step.Failure_Transient((reason, failure.retry_after_ms))) from None
                raise Err(step.Failure_Permanent(reason)) from None
            except Exception as error:
                # To standard error: a line each of the step's log.
                traceback.print_exc()
                raise Err(step.Failure_Permanent(step.Reason("exception", repr(error)))) from None

    return Step
