// Turns what a metrics store returns into what a dashboard draws: one panel a
// widget, points gathered into buckets, one legend line a series.
export default function reshape({ range, buckets, widgets }) {
  const step = (range.to - range.from) / buckets;

  const summarise = (series) => {
    const cells = Array.from({ length: buckets }, () => ({ n: 0, sum: 0, min: Infinity, max: -Infinity }));
    for (const { t, v } of series.points) {
      if (t < range.from || t >= range.to) continue;
      const cell = cells[Math.floor((t - range.from) / step)];
      cell.n++;
      cell.sum += v;
      if (v < cell.min) cell.min = v;
      if (v > cell.max) cell.max = v;
    }
    const seen = cells.filter((c) => c.n > 0);
    return {
      name: Object.entries(series.labels).map(([k, v]) => `${k}=${v}`).join(","),
      points: cells.map((c, i) => [range.from + i * step, c.n === 0 ? null : Math.floor(c.sum / c.n)]),
      min: seen.reduce((m, c) => Math.min(m, c.min), Infinity),
      max: seen.reduce((m, c) => Math.max(m, c.max), -Infinity),
      last: series.points.at(-1).v,
    };
  };

  return widgets
    .filter((w) => !w.hidden)
    .map(({ id, title, unit, series }) => ({
      id,
      title: title.trim(),
      axis: { unit: unit ?? "1" },
      series: series.map(summarise).sort((a, b) => b.max - a.max || (a.name < b.name ? -1 : 1)),
    }));
}
