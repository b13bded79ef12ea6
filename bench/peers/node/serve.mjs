// Serves quickjs-emscripten over the protocol of bench/peers: node serve.mjs NAME.
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isMainThread, parentPort, Worker } from "node:worker_threads";
import { evaluate, now } from "./evaluate.mjs";

const version = `0.32.0, release-sync (Bellard's QuickJS 2025-09-13) on Node ${process.versions.node}`;
const docs = "https://github.com/justjake/quickjs-emscripten";
const common = "setMemoryLimit, setMaxStackSize(128 KiB), interrupt handler with the deadline; memory and stack guards are known by the text of the error, since it offers nothing else";
const settings = {
  emscripten: `a runtime an evaluation on the main thread, a new module after a memory guard or an abort; ${common}`,
  "emscripten-pool": `4 worker_threads, terminate() 20 ms after the deadline and when cancelled, then a new worker; execArgv []; ${common}`,
};

// grace is how much later than the clock in the VM a worker is terminated, in ms.
const grace = 20;

function send(reply) {
  let line = Buffer.from(JSON.stringify(reply) + "\n");
  while (line.length > 0) {
    try {
      line = line.subarray(writeSync(1, line));
    } catch (e) {
      if (e.code !== "EAGAIN") throw e;
    }
  }
}

const answer = (id, out, ns) => ({ ...out, id, value: out.value && Buffer.from(out.value).toString("base64"), ns: Math.round(ns), done: true });

// pool runs evaluations in workers and terminates those that are late.
class pool {
  idle = [];
  waiting = [];
  running = new Map();

  constructor(count) {
    this.ready = Promise.all(Array.from({ length: count }, () => this.add()));
  }

  add() {
    return new Promise((resolve, reject) => {
      const worker = new Worker(fileURLToPath(import.meta.url), { execArgv: [] });
      worker.on("message", (m) => {
        if (m.ready) {
          this.give(worker);
          resolve();
        } else if (m.armed) worker.job.began(m.armed);
        else worker.job.end(m.out);
      });
      worker.on("error", (e) => {
        worker.job?.end({ class: "engineFault", message: `the worker ended: ${e}`, killed: true });
        reject(e);
      });
    });
  }

  give(worker) {
    worker.job = undefined;
    const next = this.waiting.shift();
    if (next) next(worker);
    else this.idle.push(worker);
  }

  async evaluate(r, started, id) {
    const cancelled = { now: false };
    if (id) this.running.set(id, () => (cancelled.now = true));
    const worker = this.idle.pop() ?? (await new Promise((resolve) => this.waiting.push(resolve)));
    let timer;
    const out = await new Promise((resolve) => {
      const kill = async (out) => {
        worker.job.end = () => {};
        await worker.terminate();
        this.add().catch(() => {});
        resolve({ ...out, killed: true, armed: worker.job.armed });
      };
      worker.job = {
        began: (armed) => {
          worker.job.armed = armed;
          started?.(armed);
          timer = setTimeout(() => kill({ class: "limit", guard: "wallClock", message: "terminated" }), r.limits.WallClock / 1e6 + grace);
        },
        end: (out) => {
          if (!out.killed || out.armed) this.give(worker);
          else this.add().catch(() => {});
          resolve(out);
        },
      };
      if (id) this.running.set(id, () => kill({ class: "canceled" }));
      if (cancelled.now) kill({ class: "canceled" });
      else worker.postMessage({ id, r });
    });
    clearTimeout(timer);
    if (id) this.running.delete(id);
    return out;
  }

  cancel(id) {
    this.running.get(id)?.();
  }
}

function main(name) {
  if (!(name in settings)) {
    console.error(`peers: argument ${JSON.stringify(name)}: give one of ${Object.keys(settings).join(", ")}; this program is driven by bench/peers/run`);
    process.exit(1);
  }
  const workers = name === "emscripten-pool" ? new pool(4) : undefined;
  const one = workers ? (r, started, id) => workers.evaluate(r, started, id) : evaluate;
  const same = (a, b) => Buffer.from(a ?? "").equals(Buffer.from(b ?? ""));

  const operations = {
    info: (r) => send({ id: r.id, info: { name, version, settings: settings[name], docs }, done: true }),
    cancel: (r) => workers?.cancel(r.of),
    eval: async (r) => {
      const began = performance.now();
      const out = await one(r, (armed) => send({ id: r.id, armed }), r.id);
      out.returned = now();
      send(answer(r.id, out, (performance.now() - began) * 1e6));
    },
    batch: async (r) => {
      const began = performance.now();
      let first;
      for (let n = 0; n < Math.max(1, r.count); n++) {
        const out = await one(r);
        first ??= out;
        if (out.class !== "ok" || !same(out.value, first.value)) {
          first = out;
          break;
        }
      }
      send(answer(r.id, first, (performance.now() - began) * 1e6));
    },
    loop: async (r) => {
      globalThis.gc?.();
      const pressure = setInterval(() => globalThis.gc?.(), 20);
      let last = performance.now(), longest = 0, unavailable = 0;
      const beat = () => {
        const t = performance.now();
        longest = Math.max(longest, t - last);
        unavailable += Math.max(0, t - last - 2);
        last = t;
      };
      const beats = setInterval(beat, 1);
      const began = performance.now();
      const outs = await Promise.all(Array.from({ length: Math.max(1, r.count) }, async () => {
        await new Promise(setImmediate);
        return one(r);
      }));
      const took = performance.now() - began;
      beat();
      clearInterval(beats);
      clearInterval(pressure);
      const worst = outs.find((o) => o.class !== "ok" || !same(o.value, outs[0].value)) ?? outs[0];
      send({ ...answer(r.id, worst, took * 1e6), longest_ns: Math.round(longest * 1e6), unavailable_ns: Math.round(unavailable * 1e6) });
    },
  };
  const start = async () => {
    await workers?.ready;
    for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
      const r = JSON.parse(line);
      Promise.resolve(operations[r.op](r)).catch((e) => send({ id: r.id, host_error: String(e), done: true }));
    }
    process.exit(0);
  };
  start().catch((e) => {
    console.error(e);
    process.exit(1);
  });
}

if (!isMainThread) {
  parentPort.on("message", async ({ id, r }) => {
    const out = await evaluate(r, (armed) => parentPort.postMessage({ id, armed }));
    const bytes = out.value && new Uint8Array(out.value); // a copy of its own can be transferred
    parentPort.postMessage({ id, out: { ...out, value: bytes } }, bytes ? [bytes.buffer] : []);
  });
  parentPort.postMessage({ ready: true });
} else {
  main(process.argv[2]);
}
