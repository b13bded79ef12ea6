// Takes one JSON text and gives another: names from snake_case to camelCase,
// nulls dropped, amounts as text, tags flattened.
const camel = (key) => key.replace(/_([a-z])/g, (_, c) => c.toUpperCase());

function convert(value) {
  if (Array.isArray(value)) return value.map(convert);
  if (value === null || typeof value !== "object") return value;
  const out = {};
  for (const [key, v] of Object.entries(value)) {
    if (v === null) continue;
    if (key.endsWith("_cents")) out[camel(key.slice(0, -6))] = `${Math.floor(v / 100)}.${String(v % 100).padStart(2, "0")}`;
    else if (key === "tags") out.tags = v.map(({ name, values }) => values.map((x) => `${name}:${x}`)).flat().join(" ");
    else out[camel(key)] = convert(v);
  }
  return out;
}

JSON.stringify(convert(JSON.parse(input.text)));
