// The BullMQ app that is measured. `node bullmq.mjs work CONCURRENCY` is the worker, `node bullmq.mjs produce` takes orders
// as common.py does.

import fs from "node:fs";
import readline from "node:readline";
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(process.env.BENCH_NODE + "/")("bullmq");

const url = new URL(process.env.BENCH_REDIS_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

let pipe;
function write(label, at) {
  const started = process.hrtime.bigint();
  pipe ??= fs.openSync(process.env.BENCH_FIFO, "w");
  const { user, system } = process.cpuUsage();
  fs.writeSync(pipe, `${label} ${at} ${started} ${Date.now() * 1e6} ${(user + system) * 1000}\n`);
}

function work(concurrency) {
  const run = {
    noop: async () => {},
    stamp: async ({ label, at }) => write(label, at),
    sleep: async () => {
      write("begin", 0);
      await new Promise((resolve) => setTimeout(resolve, 1000));
      write("end", 0);
    },
  };
  const worker = new Worker("bench", async (job) => run[job.name](job.data), { connection, concurrency });
  process.on("SIGTERM", async () => {
    await worker.close();
    process.exit(0);
  });
}

async function produce() {
  const queue = new Queue("bench", { connection });
  const timed = async (push) => {
    const began = process.hrtime.bigint();
    await push();
    return Number(process.hrtime.bigint() - began) / 1e9;
  };
  const bulk = async (kind, jobs) => {
    const name = kind === "anoop" ? "noop" : kind;
    for (let first = 0; first < jobs; first += 1000) {
      await queue.addBulk(Array.from({ length: Math.min(1000, jobs - first) }, () => ({ name, data: {} })));
    }
  };
  const single = async (jobs) => {
    for (let i = 0; i < jobs; i++) await queue.add("noop", {});
  };
  const orders = {
    single: ({ jobs }) => timed(() => single(jobs)),
    bulk: ({ jobs, kind = "noop" }) => timed(() => bulk(kind, jobs)),
    stamp: ({ label }) => queue.add("stamp", { label, at: String(process.hrtime.bigint()) }),
    size: async () => Object.values(await queue.getJobCounts("wait", "active", "delayed")).reduce((a, b) => a + b),
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    const answer = await orders[order.do](order);
    process.stdout.write(JSON.stringify(typeof answer === "number" ? answer : null) + "\n");
  }
  await queue.close();
}

if (process.argv[2] === "work") work(Number(process.argv[3]));
else await produce();
