"use strict";
// What all pages have: tools that need this script are shown, the theme is chosen, tables are sorted. All else is there without it.
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

  // -- sort, of tables that ask for it
  const valueOf = (cell) => parseFloat(cell.dataset.value || cell.textContent);
  const compare = (kind, column, way) => (one, other) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    if (kind === "text") return way * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    const [x, y] = [valueOf(a), valueOf(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y); // what is not known comes last, either way
    return way * (x - y);
  };
  all("table.sorted").forEach((table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
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
  });
})();
