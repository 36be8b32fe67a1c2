"use strict";
// Sort, filter, theme and folds. The page says all it has to say without this.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.documentElement;
  all(".tools").forEach((tools) => { tools.hidden = false; });

  // -- theme: as the system, light, dark
  const themes = ["", "light", "dark"];
  const theme = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("dtfperf-theme") || ""; } catch { return ""; } };
  const wear = (name) => {
    if (name) root.dataset.theme = name; else delete root.dataset.theme;
    theme.textContent = "Theme: " + (name || "as the system");
    try { localStorage.setItem("dtfperf-theme", name); } catch { /* a file's page may not remember */ }
  };
  wear(themes.includes(remembered()) ? remembered() : "");
  theme.addEventListener("click", () => wear(themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length]));

  // -- sort
  const table = document.getElementById("rates");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const valueOf = (cell) => parseFloat(cell.dataset.value || cell.textContent);
  const compare = (kind, column, way) => (one, other) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    if (kind === "text") return way * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    const [x, y] = [valueOf(a), valueOf(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y); // what is not known comes last, either way
    return way * (x - y);
  };
  all("th[data-sort]", table).forEach((heading) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const way = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      rows.sort(compare(heading.dataset.sort, heading.cellIndex, way));
      body.append(...rows);
    });
  });

  // -- filter, by words and by verdict
  const filter = document.getElementById("filter");
  const kinds = document.getElementById("kinds");
  const shown = document.getElementById("shown");
  const cardOf = (row) => document.getElementById(row.dataset.card);
  const wordOf = (row) => row.cells[0].textContent.trim();
  const words = new Map(rows.map((row) => [row, (row.textContent + " " + cardOf(row).querySelector(".facts").textContent + " " + cardOf(row).querySelector(".command").textContent).toLowerCase()]));
  const off = new Set();
  const apply = () => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row) => {
      const visible = !off.has(wordOf(row)) && wanted.every((word) => words.get(row).includes(word));
      row.hidden = cardOf(row).hidden = !visible;
      count += visible;
    });
    shown.textContent = count === rows.length ? "" : count + " of " + rows.length;
  };
  const verdicts = new Map(rows.map((row) => [wordOf(row), row.cells[0].firstElementChild]));
  if (verdicts.size > 1) verdicts.forEach((chip, word) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(chip.cloneNode(true));
    button.addEventListener("click", () => {
      if (!off.delete(word)) off.add(word);
      button.setAttribute("aria-pressed", String(!off.has(word)));
      apply();
    });
    kinds.append(button);
  });
  filter.addEventListener("input", apply);

  // -- folds: all at once; open where a link leads, and on paper
  const cards = all("details.card");
  const fold = (open) => cards.forEach((card) => { if (!card.hidden) card.open = open; });
  document.getElementById("unfold").addEventListener("click", () => fold(true));
  document.getElementById("fold").addEventListener("click", () => fold(false));
  const follow = () => {
    const card = document.getElementById(location.hash.slice(1));
    if (card && card.matches("details")) { card.open = true; card.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
  let folded = [];
  addEventListener("beforeprint", () => { folded = all("details.card:not([open])"); folded.forEach((card) => { card.open = true; }); });
  addEventListener("afterprint", () => { folded.forEach((card) => { card.open = false; }); });
})();
