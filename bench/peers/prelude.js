// Evaluated before the script, the same in every peer. What it needs later it
// takes now: the script may replace all of it.
(() => {
  const { parse, stringify } = JSON;
  const { apply } = Reflect;
  const P = Promise;
  const { then } = P.prototype;
  const TE = TypeError;
  const E = Error;
  let state = "";
  let value;
  const settled = (v) => {
    state = "value";
    value = v;
  };
  const failed = (e) => {
    state = "error";
    value = e;
  };
  const peer = {
    seed(text) {
      globalThis.input = parse(text);
    },
    settle(v) {
      if (v instanceof P) apply(then, v, [settled, failed]);
      else settled(v);
    },
    dump() {
      if (state === "error") throw value;
      if (state === "") throw new E("the promise of the result never settled");
      if (value === undefined) return undefined;
      let text;
      try {
        text = stringify(value);
      } catch (e) {
        // A cycle or a BigInt; a toJSON that throws a TypeError looks the same.
        if (e instanceof TE) return null;
        throw e;
      }
      return text === undefined ? null : text;
    },
  };
  Object.defineProperty(globalThis, "$peer", { value: Object.freeze(peer) });
})();
