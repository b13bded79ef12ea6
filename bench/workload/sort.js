// Sorts rows by several keys, numbers, and text, and answers with the orders.
const { rows, numbers, words } = input;

const byKeys = (...keys) => (a, b) => {
  for (const [key, direction] of keys) {
    if (a[key] < b[key]) return -direction;
    if (a[key] > b[key]) return direction;
  }
  return 0;
};

({
  // Two rows may be equal in all three keys: the sort must be stable.
  rows: [...rows].sort(byKeys(["team", 1], ["score", -1], ["name", 1])).map((r) => r.id),
  numbers: numbers.toSorted((a, b) => a - b),
  typed: [...Int32Array.from(numbers).sort()].slice(0, 8),
  words: [...new Set(words)].sort(),
});
