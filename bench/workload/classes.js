// A small warehouse: classes with private fields, inheritance, accessors,
// generators, and closures that listen to events.
class Stock {
  #count = 0;
  #listeners = [];
  constructor(name) {
    this.name = name;
  }
  get count() {
    return this.#count;
  }
  listen(f) {
    this.#listeners.push(f);
    return () => {
      this.#listeners = this.#listeners.filter((g) => g !== f);
    };
  }
  change(by) {
    this.#count += by;
    for (const f of this.#listeners) f(this, by);
  }
  take(n) {
    const taken = Math.min(n, this.#count);
    if (taken > 0) this.change(-taken);
    return taken;
  }
}

class Perishable extends Stock {
  #life;
  #lots = [];
  constructor(name, life) {
    super(name);
    this.#life = life;
  }
  put(n, day) {
    this.#lots.push({ n, until: day + this.#life });
    this.change(n);
  }
  expire(day) {
    const gone = this.#lots.filter((l) => l.until <= day).reduce((sum, l) => sum + l.n, 0);
    this.#lots = this.#lots.filter((l) => l.until > day);
    return super.take(gone);
  }
}

class Durable extends Stock {
  put(n) {
    this.change(n);
  }
  expire() {
    return 0;
  }
}

const counter = () => {
  let n = 0;
  return { add: (by = 1) => (n += by), get: () => n };
};

function* orders({ events }) {
  let day = 0;
  for (const [item, put, take] of events) yield { day: Math.floor(day++ / 8), item, put, take };
}

const moves = counter();
const short = counter();
const lost = counter();
const low = new Set();
const stocks = input.items.map(({ name, life }) => (life > 0 ? new Perishable(name, life) : new Durable(name)));
const stop = stocks.map((s) =>
  s.listen((stock, by) => {
    moves.add(by < 0 ? -by : by);
    if (by < 0 && stock.count < 5) low.add(stock.name);
  }),
);

for (const { day, item, put, take } of orders(input)) {
  const stock = stocks[item];
  lost.add(stock.expire(day));
  stock.put(put, day);
  short.add(take - stock.take(take));
}
stop.forEach((f) => f());
for (const s of stocks) s.put(1, 0); // nobody listens any more

({
  moves: moves.get(),
  short: short.get(),
  lost: lost.get(),
  low: [...low].sort(),
  left: stocks.map((s) => [s.name, s.count]),
});
