"""What JSON Schema has no words for, and a check that schemathesis lacks."""

import os
import uuid

import schemathesis

ACCOUNTS = os.environ["ONCEPOST_ACCOUNTS"].split()
FAULTS = {"drop-reply", "fail-before-commit", "fail-after-commit"}

# Headers of HTTP itself, and of connections, which documents don't declare.
OF_HTTP = {"content-type", "content-length", "date", "connection", "transfer-encoding", "vary"}


@schemathesis.hook
def before_call(context, case, **kwargs):
    positive = case.meta.generation.mode.is_positive
    # A fault that is asked for brings no answer to judge: 503, a late one, or none at all.
    fault = case.headers.get("Oncepost-Fault")
    if fault in FAULTS or (positive and fault is not None):
        case.headers["Oncepost-Fault"] = "delay=1"
    if positive:
        make_sensible(case)
    elif str(case.query.get("dry_run")).lower() == "true":
        # A dry run needs no key and meets no fault, so that what is wrong with those headers is passed over.
        del case.query["dry_run"]


def make_sensible(case):
    # What a dry run shows was never made, so nothing that follows can build on it.
    if case.meta.phase.name == "stateful":
        case.query.pop("dry_run", None)
    # Each request is an intent of its own; otherwise most would be refused for a key that the one before has used.
    key = case.headers.get("Idempotency-Key")
    if key is not None:
        case.headers["Idempotency-Key"] = (key + str(uuid.uuid4()))[-255:]
    if isinstance(case.body, dict):
        case.body = {name: whole_number(value) for name, value in case.body.items()}
    if case.operation.path != "/v1/transfers":
        return
    # Half of the transfers are between accounts that there are.
    if isinstance(case.body, dict) and case.body["amount"] % 2 == 0:
        source, destination = ACCOUNTS
        case.body.update(source_account_id=source, destination_account_id=destination, currency="EUR")
    # A cursor is of the list that it came from, and an account's transfers are a list of their own.
    cursor = case.query.get("cursor")
    if cursor is not None and cursor.startswith("s") != ("account_id" in case.query):
        del case.query["cursor"]


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
