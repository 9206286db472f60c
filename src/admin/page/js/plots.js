// The last minutes of one instance, from samples of its counters that were taken while the page was open.

const MINUTE = 60 * 1000;
const WINDOW = 5 * MINUTE;

// The time that a plot shows while there are only a few samples.
const SHORTEST = MINUTE;

class History {
  constructor() {
    this.points = [];
  }

  add(at, { stats, store, longest_wait_ms: longest }) {
    const before = this.last;
    this.last = { at, stats };
    if (!before || at <= before.at) return;
    const turns = stats.turns - before.stats.turns;
    const perTurn = (name) => (turns === 0 ? 0 : (stats[name] - before.stats[name]) / turns);
    this.points.push({
      at,
      turns: turns / ((at - before.at) / 1000),
      wait: perTurn("waited_ms"),
      passed: 100 * perTurn("passed_on"),
      waiting: stats.waiting,
      longest,
      store: store.ping_ms,
    });
    while (this.points[0].at < at - WINDOW) this.points.shift();
  }
}

// `least`: the smallest value that the full height stands for.
const PLOTS = [
  { name: "turns", title: "Turns per second", least: 1, parts: (value) => [value < 10 ? value.toFixed(1) : count(Math.round(value)), ""] },
  { name: "passed", title: "Turns passed on", least: 100, parts: (value) => [value.toFixed(0), "%"] },
  { name: "wait", title: "Mean time waited", least: 1, parts: durationParts },
  { name: "waiting", title: "Requests waiting", least: 1, parts: (value) => [count(value), ""] },
  { name: "longest", title: "Longest wait", least: 1, parts: durationParts },
  { name: "store", title: "Store answers in", least: 1, parts: durationParts },
];

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

class Plot {
  constructor({ name, title, parts, least }) {
    Object.assign(this, { name, parts, least });
    this.peak = make("span", { class: "peak" });
    this.value = make("span", { class: "value" }, "–");
    this.area = svg("path", { class: "area" });
    this.curve = svg("path", { class: "curve" });
    this.minutes = svg("path", { class: "minutes" });
    this.from = make("span");
    const drawing = svg("svg", { viewBox: "0 0 300 44", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(this.minutes, svg("line", { class: "ground", x1: 0, y1: 43.5, x2: 300, y2: 43.5 }), this.area, this.curve);
    const axis = make("p", { class: "axis" }, this.from, make("span", {}, "now"));
    this.element = make("div", { class: "plot", id: `plot-${name}` }, make("h3", {}, word(title)), make("p", { class: "now" }, this.value, this.peak), drawing, axis);
  }

  draw(points) {
    // A value that is not known, such as the time of an answer that did not come, leaves a gap.
    const known = points.filter((point) => point[this.name] !== null);
    const values = known.map((point) => point[this.name]);
    const last = points.at(-1)?.[this.name] ?? null;
    const [number, unit] = last === null ? ["–", ""] : this.parts(last);
    this.value.replaceChildren(number, make("span", { class: "unit" }, unit));
    this.peak.textContent = values.length === 0 ? "" : `peak ${this.parts(Math.max(...values)).join(" ")}`;
    const highest = Math.max(this.least, ...values);
    const end = points.at(-1)?.at ?? 0;
    const shown = Math.max(SHORTEST, end - (points[0]?.at ?? 0));
    const x = (at) => (300 - ((end - at) / shown) * 300).toFixed(1);
    const pieces = [];
    for (const point of points) {
      if (point[this.name] === null) pieces.push([]);
      else (pieces.at(-1) ?? pieces[pieces.push([]) - 1]).push(`${x(point.at)} ${(43 - (point[this.name] / highest) * 41).toFixed(1)}`);
    }
    const drawn = pieces.filter((piece) => piece.length > 0);
    const ground = (point) => `${point.split(" ")[0]} 43.5`;
    this.curve.setAttribute("d", drawn.map((piece) => `M${piece.join("L")}`).join(""));
    this.area.setAttribute("d", drawn.map((piece) => `M${ground(piece[0])}L${piece.join("L")}L${ground(piece.at(-1))}Z`).join(""));
    const minutes = Array.from({ length: Math.floor(shown / MINUTE) }, (_, index) => x(end - (index + 1) * MINUTE));
    this.minutes.setAttribute("d", minutes.map((at) => `M${at} 2V43.5`).join(""));
    this.from.textContent = `${duration(shown)} ago`;
  }
}

const plots = PLOTS.map((plot) => new Plot(plot));

function drawPlots(history) {
  for (const plot of plots) plot.draw(history.points);
}
