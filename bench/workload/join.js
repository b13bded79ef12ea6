// Joins orders with customers and products, groups by region and month, and
// keeps the best products of each group.
const customers = new Map(input.customers.map((c) => [c.id, c]));
const products = new Map(input.products.map((p) => [p.id, p]));
const groups = new Map();

for (const order of input.orders) {
  const customer = customers.get(order.customer);
  if (customer === undefined) continue;
  const key = `${customer.region}|${order.date.slice(0, 7)}`;
  let group = groups.get(key);
  if (group === undefined) {
    group = { region: customer.region, month: order.date.slice(0, 7), orders: 0, cents: 0, buyers: new Set(), byProduct: new Map() };
    groups.set(key, group);
  }
  group.orders++;
  group.buyers.add(customer.id);
  for (const [id, quantity] of order.lines) {
    const product = products.get(id);
    const cents = quantity * product.cents;
    group.cents += cents;
    group.byProduct.set(product.name, (group.byProduct.get(product.name) ?? 0) + cents);
  }
}

[...groups.entries()]
  .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
  .map(([, { region, month, orders, cents, buyers, byProduct }]) => ({
    region,
    month,
    orders,
    cents,
    buyers: buyers.size,
    top: [...byProduct]
      .sort(([an, ac], [bn, bc]) => bc - ac || (an < bn ? -1 : 1))
      .slice(0, 3)
      .map(([name, cents]) => ({ name, cents })),
  }));
