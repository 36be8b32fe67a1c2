"""The end of a run: asked for until Amazon shows that nothing is left. Whoever cannot prove that says so, loudly."""

import math
import time
from collections.abc import Callable
from contextlib import suppress

from botocore import exceptions

from pytest_dtfperf.clusters.ec2.amazon import refusals
from pytest_dtfperf.clusters.ec2.amazon.account import Account
from pytest_dtfperf.clusters.ec2.amazon.calls import NO_ANSWER, attempts
from pytest_dtfperf.clusters.ec2.run import belongings
from pytest_dtfperf.clusters.ec2.run.belongings import Belongings
from pytest_dtfperf.clusters.ec2.run.ledger import Ledger, LedgerRecord
from pytest_dtfperf.clusters.ec2.run.request import RUN
from pytest_dtfperf.errors import AllocationError

SETTLE_S = 60.0  # after which Amazon shows what it has accepted: seconds as a rule, but it promises nothing
WITHIN_S = 900.0  # instances of eight GPUs take minutes to shut down


def tear_down(
    account: Account,
    run: str,
    ledger: Ledger | None,
    *,
    settle_s: float = SETTLE_S,
    within_s: float = WITHIN_S,
    on_status: Callable[[str], object] = lambda words: None,
) -> None:
    """End everything a run has. Raises `AllocationError` with the commands that are left to be typed if that fails."""
    record = ledger.read() if ledger else None
    if ledger:
        if record is None or record.is_closed:  # nothing was asked for, or nothing is left
            return
        with suppress(AllocationError):  # a disk that takes no more must not keep anything running
            ledger.note("ending")
    left, why = None, ""
    told = False
    for _ in attempts(within_s):
        try:
            left = belongings.find_belongings(account, run, record, settle_s=settle_s)
            unsettled_s = _unsettled_s(record, settle_s)
            if not left and not left.unseen and unsettled_s <= 0:
                if ledger and record:
                    with suppress(AllocationError):  # then the next session sees for itself that nothing is left
                        ledger.close()
                return
            belongings.delete_belongings(account, left)
            why = ""
        except NO_ANSWER as error:
            why = account.explain(error)
            continue
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            why = account.explain(error)
            if isinstance(error, exceptions.ClientError) and _may_pass(error):
                continue
            break
        if not left and unsettled_s > 0 and not told:
            told = True
            on_status(f"waiting {math.ceil(unsettled_s)} s for an answer that was lost: instances may still appear")
    raise AllocationError(_loud(account, run, left, why))


def _unsettled_s(record: LedgerRecord | None, settle_s: float) -> float:
    """For how long an empty list proves nothing, because something was asked for of which no answer is known."""
    if record is None or record.unanswered is None:
        return 0.0
    return record.unanswered + settle_s - time.time()


def _may_pass(error: exceptions.ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    return refusals.kind_of(refusals.code_of(error), status) is refusals.Refusal.TRANSIENT


def _loud(account: Account, run: str, left: Belongings | None, why: str) -> str:
    because = f": {why}" if why else ""
    head = f"INSTANCES MAY STILL RUN AND COST MONEY. The end of run {run} in {account} could not be proven{because}."
    if left:
        steps = "\n".join(f"    {command}" for command in left.commands(account.region))
        return f"{head} Type this, or `dtfperf ec2 reap` later:\n{steps}"
    return (
        f"{head} Look for what is left, or type `dtfperf ec2 reap` later:\n"
        f"    aws ec2 describe-instances --region {account.region} --filters Name=tag:{RUN},Values={run}"
    )
