// The last minutes of one instance, from samples of its counters that were taken while the page was open.

const WINDOW = 5 * 60 * 1000;

// The time that a plot shows while there are only a few samples.
const SHORTEST = 60 * 1000;

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
    const drawing = svg("svg", { viewBox: "0 0 300 44", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(svg("line", { class: "ground", x1: 0, y1: 43.5, x2: 300, y2: 43.5 }), this.area, this.curve);
    this.element = make("div", { class: "plot", id: `plot-${name}` }, make("h3", {}, title), make("p", { class: "now" }, this.value, this.peak), drawing);
  }

  draw(points) {
    const values = points.map((point) => point[this.name]);
    if (values.length === 0) {
      this.value.replaceChildren("–");
      this.peak.textContent = "";
      for (const path of [this.area, this.curve]) path.removeAttribute("d");
      return;
    }
    const [number, unit] = this.parts(values.at(-1));
    this.value.replaceChildren(number, make("span", { class: "unit" }, unit));
    this.peak.textContent = `peak ${this.parts(Math.max(...values)).join(" ")}`;
    const highest = Math.max(this.least, ...values);
    const end = points.at(-1).at;
    const shown = Math.max(SHORTEST, end - points[0].at);
    const line = points.map((point, index) => {
      const x = 300 - ((end - point.at) / shown) * 300;
      const y = 43 - (values[index] / highest) * 41;
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    const [first] = line[0].split(" ");
    this.curve.setAttribute("d", `M${line.join("L")}`);
    this.area.setAttribute("d", `M${first} 43.5L${line.join("L")}L300 43.5Z`);
  }
}

const plots = PLOTS.map((plot) => new Plot(plot));

function drawPlots(history) {
  for (const plot of plots) plot.draw(history.points);
}
