// Dates, durations, amounts and names, written for people.
const days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const two = (n) => String(n).padStart(2, "0");

function day(ms) {
  const d = new Date(ms);
  return `${days[d.getUTCDay()]} ${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())} ${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`;
}

function duration(seconds) {
  const parts = [];
  for (const [name, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const n = Math.floor(seconds / size);
    seconds -= n * size;
    if (n > 0) parts.push(n + name);
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

function amount(cents) {
  const sign = cents < 0 ? "-" : "";
  const digits = String(Math.floor(Math.abs(cents) / 100));
  let grouped = "";
  for (let i = 0; i < digits.length; i++) {
    if (i > 0 && (digits.length - i) % 3 === 0) grouped += ",";
    grouped += digits[i];
  }
  return `${sign}${grouped}.${two(Math.abs(cents) % 100)}`;
}

const title = (s) => s.split("_").map((w) => w[0].toUpperCase() + w.slice(1).toLowerCase()).join(" ");

input.events.map(
  (e, i) =>
    `${String(i + 1).padStart(5)} ${day(e.at)} ${new Date(Date.parse(e.until)).toISOString()} ${title(e.name).padEnd(24, ".")} ${duration(e.seconds)} ${amount(e.cents)}`,
).join("\n");
