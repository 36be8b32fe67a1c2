// Of a session's page: filter and folds.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const rows = [...document.getElementById("rates").tBodies[0].rows];

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
