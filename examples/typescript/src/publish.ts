// Publishes one job and prints each outcome of its run as a line of JSON, until the run ends.
//
//   NATS_URL=nats://publisher-acme:password@127.0.0.1:4222 npm start -- ../job.json
//
// Exit code: 0 ok, 2 fatal, 3 needs_human, 4 cancelled, 5 no end within TIMEOUT_SECONDS, 1 any other error.
//
// It needs no more rights than a publisher has (deploy/nats/accounts.conf): to publish its tenant's jobs, to subscribe to its
// tenant's results and to its own inbox, and to read the last outcome of a run.
import { readFile } from "node:fs/promises";
import { jetstream } from "@nats-io/jetstream";
import { connect, headers, type ConnectionOptions, type NatsConnection, type Subscription } from "@nats-io/transport-node";

interface Job {
  schema: "agentrun.job/v1";
  tenant: string;
  run_id: string;
  steps?: { step: string; tool: string; args: unknown }[];
  more?: boolean;
}

interface Outcome {
  id: string;
  scope: "step" | "run";
  terminal: boolean;
  outcome: "ok" | "retryable" | "unknown" | "needs_human" | "fatal" | "cancelled";
  reason_code?: string;
  step?: string;
}

const exitCodes: Partial<Record<Outcome["outcome"], number>> = { ok: 0, fatal: 2, needs_human: 3, cancelled: 4 };

function options(): ConnectionOptions {
  const url = new URL(process.env.NATS_URL ?? "nats://127.0.0.1:4222");
  return {
    servers: url.host,
    user: url.username === "" ? undefined : decodeURIComponent(url.username),
    pass: url.password === "" ? undefined : decodeURIComponent(url.password),
    inboxPrefix: process.env.AGENTRUN_INBOX_PREFIX,
    maxReconnectAttempts: -1,
    name: "example publisher",
  };
}

// publish sends the job until the server has acknowledged it. Sending it again is safe: the same job of the same run is the
// same work, and is done once.
async function publish(nc: NatsConnection, queue: string, job: Job, data: Uint8Array): Promise<void> {
  const subject = `agentrun.jobs.${queue}.${job.tenant}.${job.run_id}`;
  const h = headers();
  if (process.env.TRACEPARENT) {
    h.set("traceparent", process.env.TRACEPARENT);
  }
  for (let attempt = 1; ; attempt++) {
    try {
      await jetstream(nc).publish(subject, data, { headers: h, timeout: 5000 });
      return;
    } catch (err) {
      if (attempt === 5) {
        throw err;
      }
    }
  }
}

// ended reads the run's end from the stream, for what was published before this process listened or while its connection
// was away; undefined if there is none. (Direct reads are there on one NATS server; with three copies the answer is none.)
async function ended(nc: NatsConnection, job: Job): Promise<Outcome | undefined> {
  const subject = `$JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.${job.tenant}.${job.run_id}.run`;
  const reply = await nc.request(subject, undefined, { timeout: 5000 }).catch(() => undefined);
  return reply === undefined || reply.headers?.hasError ? undefined : reply.json<Outcome>();
}

// follow prints each outcome once and resolves to the exit code when the run has ended.
function follow(nc: NatsConnection, job: Job, outcomes: Subscription, seconds: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const seen = new Set<string>();
    const take = (outcome: Outcome) => {
      if (!seen.has(outcome.id)) {
        seen.add(outcome.id);
        console.log(JSON.stringify(outcome));
      }
      if (outcome.scope === "run") {
        resolve(exitCodes[outcome.outcome] ?? 1);
      }
    };
    const listen = async () => {
      for await (const m of outcomes) {
        take(m.json<Outcome>());
      }
    };
    listen().catch(reject);
    // A job that repeats what is known causes no outcome, and one may be missed while the connection is away.
    setInterval(async () => {
      const end = await ended(nc, job);
      if (end !== undefined) {
        take(end);
      }
    }, 2000);
    setTimeout(() => resolve(5), seconds * 1000);
  });
}

async function main(): Promise<number> {
  const file = process.argv[2];
  if (file === undefined) {
    throw new Error("usage: publish JOB_FILE [QUEUE]");
  }
  const data = await readFile(file);
  const job = JSON.parse(data.toString()) as Job;
  const nc = await connect(options());
  // Subscribed before publishing, so that no outcome is missed.
  const outcomes = nc.subscribe(`agentrun.results.${job.tenant}.${job.run_id}.>`);
  await nc.flush();
  await publish(nc, process.argv[3] ?? "default", job, data);
  return follow(nc, job, outcomes, Number(process.env.TIMEOUT_SECONDS ?? "900"));
}

main().then(
  (code) => process.exit(code),
  (err: unknown) => {
    console.error(err instanceof Error ? err.message : err);
    process.exit(1);
  },
);
