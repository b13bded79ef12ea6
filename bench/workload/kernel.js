// Arithmetic without objects: a matrix product in doubles, a sieve in bytes, a
// mixing function in 32-bit integers.
const { n, sieve, rounds, seed } = input;

let state = seed | 0;
const next = () => {
  state = (Math.imul(state, 1664525) + 1013904223) | 0;
  return (state >>> 8) / 16777216;
};

const a = Float64Array.from({ length: n * n }, next);
const b = Float64Array.from({ length: n * n }, next);
let trace = 0;
let total = 0;
for (let i = 0; i < n; i++) {
  for (let j = 0; j < n; j++) {
    let sum = 0;
    for (let k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
    total += sum;
    if (i === j) trace += sum;
  }
}

const composite = new Uint8Array(sieve + 1);
let primes = 0;
for (let i = 2; i <= sieve; i++) {
  if (composite[i]) continue;
  primes++;
  for (let j = i * i; j <= sieve; j += i) composite[j] = 1;
}

let h = seed | 0;
for (let i = 0; i < rounds; i++) {
  h ^= i;
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d);
  h = (h << 13) | (h >>> 19);
}

({ trace, total, primes, hash: h >>> 0 });
