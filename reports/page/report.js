"use strict";
// Sorting: a click on a heading sorts by it, a second one the other way round.
// Cells without a figure stay at the end either way.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const given = [...body.rows];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const h of heads) h.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const key = row => {
        const v = row.cells[column].dataset.v;
        if (v === undefined) return row.cells[column].textContent;
        return v === "" ? null : Number(v);
      };
      const keys = new Map(given.map(row => [row, key(row)]));
      body.append(...given.toSorted((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : x - y);
      }));
    });
  });
}
// Filtering.
const form = document.getElementById("filter");
const rows = [...document.querySelectorAll("#all tbody tr")];
const names = new Map(rows.map(row => [row, row.cells[0].textContent.toLowerCase()]));
const filter = () => {
  const {text, verdict, lane, gated, shown} = form.elements;
  const part = text.value.trim().toLowerCase();
  let n = 0;
  for (const row of rows) {
    row.hidden = !(names.get(row).includes(part) && (!verdict.value || row.dataset.verdict === verdict.value)
      && (!lane.value || row.dataset.lane === lane.value) && (!gated.checked || row.dataset.gated === "true"));
    if (!row.hidden) n++;
  }
  shown.value = `${n} of ${rows.length} rows`;
};
form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", event => event.preventDefault());
filter();
