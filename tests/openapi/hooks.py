"""What JSON Schema has no words for, and a check that schemathesis lacks.

The hooks change nothing about requests that are meant to be refused.
"""

import os
import uuid

import schemathesis

ACCOUNTS = os.environ["ONCEPOST_ACCOUNTS"].split()
CURRENCY = "EUR"

# Headers of HTTP itself, and of connections, which documents don't declare.
OF_HTTP = {"content-type", "content-length", "date", "connection", "transfer-encoding", "vary"}


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if isinstance(case.body, dict):
        case.body = {name: whole_number(value) for name, value in case.body.items()}
        # Half of the transfers are between accounts that there are.
        if case.operation.path == "/v1/transfers" and case.body.get("amount", 1) % 2 == 0:
            source, destination = ACCOUNTS
            case.body.update(source_account_id=source, destination_account_id=destination, currency=CURRENCY)
    headers = case.headers or {}
    # Each request is an intent of its own; otherwise most would be refused for a key that the one before has used.
    key = headers.get("Idempotency-Key")
    if key is not None:
        headers["Idempotency-Key"] = (key + str(uuid.uuid4()))[-255:]
    # A fault that is asked for is no answer to judge: no answer at all, or 503.
    if "Oncepost-Fault" in headers:
        headers["Oncepost-Fault"] = "delay=1"
    # A cursor is of the list that it came from, and an account's transfers are a list of their own.
    query = case.query or {}
    if case.operation.path == "/v1/transfers" and "cursor" in query:
        if query["cursor"].startswith("s") != ("account_id" in query):
            del query["cursor"]


def whole_number(value):
    """JSON Schema calls 100.0 an integer; in this API an amount has no fraction, not even an empty one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.check
def undeclared_headers(context, response, case):
    declared = case.operation.responses.find_by_status_code(response.status_code)
    if declared is None:
        return
    known = OF_HTTP | {name.lower() for name, _ in declared.headers.items()}
    strangers = sorted(set(response.headers) - known)
    assert not strangers, f"headers that the document doesn't declare: {strangers}"
