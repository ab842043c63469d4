"""Sends a transfer, twice under one key, with a client that was generated from the OpenAPI document."""

import os
import uuid

from oncepost import AuthenticatedClient
from oncepost.api.accounts import read_account
from oncepost.api.transfers import post_transfer, read_transfer
from oncepost.models import InsufficientFundsProblem, PostTransfer, PostTransferCurrency, Transfer

source, destination = (uuid.UUID(account) for account in os.environ["ONCEPOST_ACCOUNTS"].split())
client = AuthenticatedClient(base_url=os.environ["ONCEPOST_URL"], token=os.environ["ONCEPOST_KEY"])

body = PostTransfer(source_account_id=source, destination_account_id=destination, amount=1250, currency=PostTransferCurrency.EUR)
key = str(uuid.uuid4())
first = post_transfer.sync_detailed(client=client, body=body, idempotency_key=key)
assert first.status_code == 201 and isinstance(first.parsed, Transfer), first
assert first.parsed.amount == 1250 and first.parsed.description is None

again = post_transfer.sync_detailed(client=client, body=body, idempotency_key=key)
assert again.headers["Idempotent-Replayed"] == "true" and again.content == first.content

assert read_transfer.sync(client=client, id=first.parsed.id) == first.parsed
assert read_account.sync(client=client, id=destination).balance.posted == 1250

body = PostTransfer(source_account_id=destination, destination_account_id=source, amount=1251, currency=PostTransferCurrency.EUR)
declined = post_transfer.sync(client=client, body=body, idempotency_key=str(uuid.uuid4()))
assert isinstance(declined, InsufficientFundsProblem) and declined.account_id == destination, declined
