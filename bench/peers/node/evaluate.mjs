// One evaluation with quickjs-emscripten, each in a runtime of its own.
import { readFileSync } from "node:fs";
import { newQuickJSWASMModule } from "quickjs-emscripten";

const prelude = readFileSync(new URL("../prelude.js", import.meta.url), "utf8");

// Nanoseconds since 1970.
export const now = () => Math.round((performance.timeOrigin + performance.now()) * 1e6);

// maxStack, in bytes, is as deep as V8's own stack lets the module go: beyond it
// the host throws a RangeError out of the module.
const maxStack = 128 << 10;

let QuickJS = await newQuickJSWASMModule();
let spent = false;

const text = (base64) => Buffer.from(base64 ?? "", "base64").toString();

// cut keeps 4 KiB of UTF-8, never part of a character.
const cut = (s) => {
  const b = Buffer.from(String(s));
  if (b.length <= 4096) return b.toString();
  let n = 4096;
  while ((b[n] & 0xc0) === 0x80) n--;
  return b.subarray(0, n).toString();
};

// evaluate returns the fields of a reply. started is called with the instant at
// which the clock was armed.
export async function evaluate(r, started) {
  if (spent) {
    // A module that has aborted or filled its memory stays so.
    QuickJS = await newQuickJSWASMModule();
    spent = false;
  }
  const memory = () => QuickJS.getWasmMemory().buffer.byteLength;
  const image = memory();
  const out = run(r, started);
  out.usage = { ImageBytes: image, PeakMemoryBytes: memory() };
  spent ||= out.guard === "memory" || out.class === "inputTooLarge";
  return out;
}

function run(r, started) {
  let rt, ctx, deadline = Infinity;
  const out = {};
  const fail = (error) => {
    const e = ctx.dump(error);
    error.dispose();
    const message = e?.name ? `${e.name}: ${e.message}` : typeof e === "object" ? JSON.stringify(e) : String(e);
    out.class = "error";
    out.message = cut(message);
    out.stack = cut(e?.stack ?? "");
    if (message.includes("interrupted") && performance.now() >= deadline) [out.class, out.guard] = ["limit", "wallClock"];
    else if (message.includes("out of memory")) [out.class, out.guard] = ["limit", "memory"];
    else if (message.includes("stack overflow") || message.includes("Maximum call stack")) [out.class, out.guard] = ["limit", "stack"];
    return out;
  };
  try {
    rt = QuickJS.newRuntime();
    rt.setMemoryLimit(r.limits.MemoryBytes);
    rt.setMaxStackSize(maxStack);
    rt.setInterruptHandler(() => performance.now() >= deadline);
    ctx = rt.newContext();
    const held = [];
    const keep = (h) => (held.push(h), h);
    try {
      let res = ctx.evalCode(prelude, "prelude.js", { type: "global" });
      if (res.error) return fail(res.error);
      res.value.dispose();
      const peer = keep(ctx.getProp(ctx.global, "$peer"));
      const call = (name, ...args) => ctx.callFunction(keep(ctx.getProp(peer, name)), ctx.undefined, ...args);
      if (r.has_input) {
        res = call("seed", keep(ctx.newString(text(r.input))));
        if (res.error) {
          fail(res.error);
          out.seed = true;
          if (out.guard === "memory") {
            out.class = "inputTooLarge";
            delete out.guard;
          }
          return out;
        }
        res.value.dispose();
      }
      deadline = performance.now() + r.limits.WallClock / 1e6;
      out.armed = now();
      started?.(out.armed);
      res = ctx.evalCode(text(r.plain ?? r.source), r.name || "script.js", { type: "global" });
      if (res.error) return fail(res.error);
      res = call("settle", keep(res.value));
      if (res.error) return fail(res.error);
      res.value.dispose();
      for (;;) {
        const jobs = rt.executePendingJobs(1000);
        if (jobs.error) return fail(jobs.error);
        if (jobs.value === 0) break;
        if (performance.now() >= deadline) return Object.assign(out, { class: "limit", guard: "wallClock", message: "the time was over between two jobs" });
      }
      res = call("dump");
      if (res.error) return fail(res.error);
      const v = keep(res.value);
      switch (ctx.typeof(v)) {
        case "string":
          out.value = Buffer.from(ctx.getString(v));
          if (out.value.length > r.limits.MaxOutputBytes) return Object.assign(out, { class: "limit", guard: "output", value: undefined });
          break;
        case "undefined":
          break;
        default:
          return Object.assign(out, { class: "resultNotSerializable", message: "the result is no JSON" });
      }
      out.finished = now();
      out.class = "ok";
      return out;
    } finally {
      for (const h of held) if (h.alive) h.dispose();
      ctx.dispose();
      rt.dispose();
    }
  } catch (e) {
    // Thrown by the host out of the module: it aborted, or V8's stack was over.
    spent = true;
    return { class: "engineFault", message: cut(`thrown by the host: ${e?.name}: ${e?.message}`), killed: true, armed: out.armed };
  }
}
