"""`dtfperf history changes`: since when rates are others, by how much, and what else was another then."""

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pytest_dtfperf.cli.history.opened import add_history, opened
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, OTHERS, USAGE, Commands, Shape, add_command, add_json
from pytest_dtfperf.formats import change, printable

TEXT = """\
Shows what has changed over time: steps and drifts of rates, each with its size, the last session before it and the first after
it, and what of the software was another then. Sessions that were entered since are searched first.

    dtfperf history changes
    dtfperf history changes --all          # and those that were none: the rate was back within 21 sessions
    dtfperf history changes --json
    dtfperf history changes --fail         # for a job of the night

How seldom something is found where nothing has changed is promised, and stands beneath. docs/history.md says how it is found.
"""
ENDS = {
    DONE: "shown, whether there is any or none",
    FAILED: "with --fail, where the latest session has confirmed one",
    USAGE: "wrong arguments, or a history that cannot be read",
}
SHAPE: Shape = {
    "changes": [
        {
            "id": "of the change",
            "kind": "step, drift, or break: with another graph or framework one series ended and another began",
            "state": "confirmed, or reverted: the rate came back",
            "members": "a list of trainings, each with series, label, change, low, high, first_bad, last_good",
            "first_bad": "the first session after it",
            "last_good": "the last session before it",
            "found": "the session that confirmed it",
            "differences": "a list of what else was another then, in words",
            OTHERS: "see docs/history.md",
        }
    ],
    "promise": {
        "share": "at most so many of all stretches of `nights` nights have any false event, over all series together",
        "nights": "of a stretch",
        "series": "how many there are that were measured in the last 90 days and share the promise",
        "known": "whether it is known how slowly rates wander without a change; false: only large changes are found",
    },
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "changes", help="since when rates are others", text=TEXT, ends=ENDS)
    parser.add_argument("--all", action="store_true", help="those that were none, too")
    parser.add_argument("--fail", action="store_true", help="exit code 1 where the latest session has confirmed one")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import words
    from pytest_dtfperf.history.watching import watch

    watched = opened(args).write(watch)
    events = [event for event in watched.events if args.all or event["state"] == "confirmed"]
    promise = {"share": watched.promise.share, "nights": watched.promise.nights, "series": watched.series}
    if args.json:
        print_json({"changes": events, "promise": {**promise, "known": watched.is_noise_known}})
        return FAILED if args.fail and watched.new else DONE
    today = datetime.now(UTC)
    for event in events:
        print(f"{event['id']}: {printable(words.line_of(event, today))}")
        print("\n".join(_details(event)), end="\n\n")
    if not events:
        print("dtfperf: no rate has changed over time, as far as that can be told.")
    print(words.promise_of(promise, is_known=watched.is_noise_known))
    return FAILED if args.fail and watched.new else DONE


def _details(event: Mapping[str, Any]) -> list[str]:
    state = "" if event["state"] == "confirmed" else ": no change after all, the rate came back"
    return [
        f"    {event['kind']}{state}",
        f"    last good   {event['last_good']}",
        f"    first bad   {event['first_bad']}",
        f"    confirmed   {event['found']}",
        *(f"    meanwhile   {printable(words)}" for words in event["differences"]),
        *(f"    {change(m['change'])} ({change(m['low'])} to {change(m['high'])})  {m['label']}" for m in event["members"]),
    ]
