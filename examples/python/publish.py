"""Publishes one job and prints each outcome of its run as a line of JSON, until the run ends.

    pip install nats-py
    NATS_URL=nats://publisher-acme:password@127.0.0.1:4222 python3 publish.py ../job.json

Exit code: 0 ok, 2 fatal, 3 needs_human, 4 cancelled, 5 no end within TIMEOUT_SECONDS, 1 any other error.

It needs no more rights than a publisher has (deploy/nats/accounts.conf): to publish its tenant's jobs, to subscribe to its
tenant's results and to its own inbox, and to read the last outcome of a run.
"""

import asyncio
import json
import os
import sys

import nats
import nats.errors

EXIT_CODES = {"ok": 0, "fatal": 2, "needs_human": 3, "cancelled": 4}


async def publish(nc, queue, job, data):
    """Sends the job until the server has acknowledged it.

    Sending it again is safe: the same job of the same run is the same work, and is done once.
    """
    subject = f"agentrun.jobs.{queue}.{job['tenant']}.{job['run_id']}"
    headers = {"traceparent": os.environ["TRACEPARENT"]} if "TRACEPARENT" in os.environ else None
    for attempt in range(1, 6):
        try:
            await nc.jetstream().publish(subject, data, timeout=5, headers=headers)
            return
        except nats.errors.TimeoutError:
            if attempt == 5:
                raise


async def ended(nc, job):
    """The run's end as the stream has it, or None.

    For what was published before this process listened or while its connection was away. (Direct reads are there on one
    NATS server; with three copies the answer is none.)
    """
    subject = f"$JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.{job['tenant']}.{job['run_id']}.run"
    try:
        reply = await nc.request(subject, b"", timeout=5)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return None
    return json.loads(reply.data) if reply.data else None


async def follow(nc, job, outcomes):
    """Prints each outcome once and returns the exit code when the run has ended."""
    seen = set()
    while True:
        try:
            outcome = json.loads((await outcomes.next_msg(timeout=2)).data)
        except nats.errors.TimeoutError:
            # A job that repeats what is known causes no outcome, and one may be missed while the connection is away.
            outcome = await ended(nc, job)
            if outcome is None:
                continue
        if outcome["id"] not in seen:
            seen.add(outcome["id"])
            print(json.dumps(outcome, ensure_ascii=False), flush=True)
        if outcome["scope"] == "run":
            return EXIT_CODES.get(outcome["outcome"], 1)


async def main(file, queue="default"):
    with open(file, "rb") as f:
        data = f.read()
    job = json.loads(data)
    nc = await nats.connect(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        inbox_prefix=os.environ.get("AGENTRUN_INBOX_PREFIX", "_INBOX"),
        max_reconnect_attempts=-1,
        name="example publisher",
    )
    try:
        # Subscribed before publishing, so that no outcome is missed.
        outcomes = await nc.subscribe(f"agentrun.results.{job['tenant']}.{job['run_id']}.>")
        await nc.flush()
        await publish(nc, queue, job, data)
        return await asyncio.wait_for(follow(nc, job, outcomes), float(os.environ.get("TIMEOUT_SECONDS", "900")))
    except asyncio.TimeoutError:
        return 5
    finally:
        await nc.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: publish.py JOB_FILE [QUEUE]")
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
