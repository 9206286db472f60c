// The last minutes of one instance, from samples of its counters that were taken while the page was open.

const WINDOW = 5 * 60 * 1000;

class History {
  constructor() {
    this.points = [];
  }

  // Counters only rise; `before` and `stats` are two samples of them.
  add(at, stats) {
    const before = this.last;
    this.last = { at, stats };
    if (!before) return;
    const seconds = (at - before.at) / 1000;
    if (seconds <= 0) return;
    const turns = stats.turns - before.stats.turns;
    const perTurn = (name) => (turns > 0 ? (stats[name] - before.stats[name]) / turns : 0);
    this.points.push({
      at,
      turns: turns / seconds,
      wait: perTurn("waited_ms"),
      passed: 100 * perTurn("passed_on"),
      waiting: stats.waiting,
    });
    while (this.points[0].at < at - WINDOW) this.points.shift();
  }
}

const PLOTS = [
  { name: "turns", title: "Turns", parts: (value) => [value < 10 ? value.toFixed(1) : count(Math.round(value)), "per second"], least: 1 },
  { name: "wait", title: "Mean time waited", parts: durationParts, least: 1 },
  { name: "waiting", title: "Requests waiting", parts: (value) => [count(value), ""], least: 1 },
  { name: "passed", title: "Passed on without the store", parts: (value) => [value.toFixed(0), "%"], least: 100 },
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
    this.value = make("p", { class: "value" }, "–");
    this.area = svg("path", { class: "area" });
    this.curve = svg("path", { class: "curve" });
    const drawing = svg("svg", { viewBox: "0 0 300 44", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(svg("line", { class: "ground", x1: 0, y1: 43.5, x2: 300, y2: 43.5 }), this.area, this.curve);
    this.element = make("div", { class: "plot", id: `plot-${name}` }, make("h3", {}, title, this.peak), this.value, drawing);
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
    this.peak.textContent = `peak ${this.parts(Math.max(...values)).filter((part) => part !== "per second").join(" ")}`;
    const highest = Math.max(this.least, ...values);
    const end = points.at(-1).at;
    const line = points.map((point, index) => {
      const x = 300 - ((end - point.at) / WINDOW) * 300;
      const y = 43 - (values[index] / highest) * 41;
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    this.curve.setAttribute("d", `M${line.join("L")}`);
    const first = line[0].split(" ")[0];
    this.area.setAttribute("d", `M${first} 43.5L${line.join("L")}L300 43.5Z`);
  }
}

const plots = PLOTS.map((plot) => new Plot(plot));

function drawPlots(history) {
  for (const plot of plots) plot.draw(history.points);
}
