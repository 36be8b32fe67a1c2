// Of a training's page: how much of the time is shown. The drawing is whole without this.
(() => {
  const SIDE = 1000, LEAST = 5; // units of the drawing: all of it, and the least that is shown
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 10);
  all("figure.chart").forEach((figure) => {
    const [begin, end] = [parseFloat(figure.dataset.begin), parseFloat(figure.dataset.end)];
    const zoomed = figure.querySelector(".zoomed");
    const marks = all(".plot > .mark", figure).map((mark) => [mark, parseFloat(mark.getAttribute("x")) / 100 * SIDE]);
    const labels = all(".below text", figure);
    const output = figure.querySelector("output");
    let from = 0, to = SIDE;
    const show = () => {
      zoomed.setAttribute("viewBox", [from, 0, to - from, SIDE].join(" "));
      marks.forEach(([mark, at]) => {
        mark.setAttribute("x", 100 * (at - from) / (to - from) + "%");
        mark.style.display = at < from || at > to ? "none" : "";
      });
      const time = (units) => begin + (end - begin) * units / SIDE;
      labels.forEach((label, i) => { label.textContent = day(time(from + (to - from) * i / (labels.length - 1))); });
      const whole = to - from >= SIDE;
      output.textContent = whole ? "" : day(time(from)) + " to " + day(time(to));
      all("[data-days]", figure).forEach((button) => {
        const asked = Number(button.dataset.days) * 86400 / (end - begin) * SIDE;
        button.setAttribute("aria-pressed", String(asked ? !whole && Math.abs(asked - (to - from)) < 1e-6 : whole));
      });
    };
    const place = (middle, size) => {
      const room = Math.min(SIDE, Math.max(LEAST, size));
      from = Math.min(SIDE - room, Math.max(0, middle - room / 2));
      to = from + room;
      show();
    };
    all("[data-days]", figure).forEach((button) => {
      const asked = Number(button.dataset.days) * 86400 / (end - begin) * SIDE;
      button.hidden = asked >= SIDE; // there is no more than that
      button.addEventListener("click", () => place(SIDE - (asked || SIDE) / 2, asked || SIDE));
    });
    all("[data-move]", figure).forEach((button) => button.addEventListener("click", () => place((from + to) / 2 + Number(button.dataset.move) * (to - from), to - from)));
    all("[data-zoom]", figure).forEach((button) => button.addEventListener("click", () => place((from + to) / 2, Number(button.dataset.zoom) * (to - from))));
    const plot = figure.querySelector(".plot");
    let pressed = null;
    const at = (event) => from + (to - from) * (event.clientX - plot.getBoundingClientRect().left) / plot.getBoundingClientRect().width;
    plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { pressed = at(event); event.preventDefault(); } });
    addEventListener("pointerup", (event) => {
      if (pressed === null) return;
      const released = at(event);
      if (Math.abs(released - pressed) > (to - from) / 50) place((pressed + released) / 2, Math.abs(released - pressed));
      pressed = null;
    });
  });
})();
