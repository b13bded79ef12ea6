// Reads access-log lines with regular expressions and sums them up.
const line = /^(?<ip>\d{1,3}(?:\.\d{1,3}){3}) - (?<user>\S+) \[(?<when>[^\]]+)\] "(?<verb>[A-Z]+) (?<path>[^ ?"]*)(?:\?(?<query>[^ "]*))? HTTP\/[\d.]+" (?<status>\d{3}) (?<bytes>\d+|-)(?<extra>.*)$/;
const pair = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

const statuses = {};
const paths = {};
const tags = {};
let bytes = 0;
let bad = 0;
let queries = 0;

for (const text of input.log.split("\n")) {
  const m = line.exec(text);
  if (m === null) {
    bad++;
    continue;
  }
  const { path, query, status, bytes: size, extra } = m.groups;
  statuses[status] = (statuses[status] ?? 0) + 1;
  const route = path.replace(/\/\d+(?=\/|$)/g, "/:id");
  paths[route] = (paths[route] ?? 0) + 1;
  if (size !== "-") bytes += Number(size);
  if (query) queries += query.split("&").length;
  for (const [, key, value] of extra.matchAll(pair)) {
    const tag = `${key}:${value.replace(/\\(.)/g, "$1")}`;
    tags[tag] = (tags[tag] ?? 0) + 1;
  }
}

const sorted = (counts) => Object.entries(counts).sort(([a], [b]) => (a < b ? -1 : 1));
({ bad, bytes, queries, statuses: sorted(statuses), paths: sorted(paths), tags: sorted(tags) });
