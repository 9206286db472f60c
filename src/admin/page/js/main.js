// What is asked when, and where the answers go.

// The instances that have answered: behind a load balancer there are several.
const instances = new Map();
let selected = null;
let view = instanceView;
// Why the store does not answer the instance that is shown; `null` if it does.
let away = null;

// How long an instance may be silent, while another one answers, before the page forgets it.
const FORGET_AFTER = 15000;

function notice(text) {
  $("notice").hidden = text === null;
  $("notice").textContent = text ?? "";
}

function heard(answer) {
  const at = performance.now();
  const known = instances.get(answer.instance) ?? { history: new History() };
  instances.set(answer.instance, Object.assign(known, { at, answer }));
  known.history.add(at, answer);
  for (const [id, { at: last }] of instances) if (at - last > FORGET_AFTER) instances.delete(id);
  if (!instances.has(selected)) selected = answer.instance;
  details.mayRelease = answer.may_force_release;
  details.maySettle = answer.may_settle;
  showInstance();
}

function showInstance() {
  const { answer, history } = instances.get(selected);
  $("instance").textContent = answer.instance;
  $("instance").hidden = instances.size > 1;
  $("label").textContent = answer.label ?? "";
  $("label").hidden = answer.label === null || instances.size > 1;
  $("instance-count").textContent = count(answer.stats.keys);
  showChoice();
  showStore(answer);
  showTotals(answer.stats);
  drawPlots(history);
  // An answer to an earlier question is not shown: the next answer is on its way.
  if (view === instanceView && !poller.again) view.show(answer);
}

function showChoice() {
  const choice = $("instances");
  choice.hidden = instances.size < 2;
  const ids = [...instances.keys()].sort();
  if (ids.join() !== [...choice.options].map((option) => option.value).join()) {
    choice.replaceChildren(...ids.map((id) => make("option", { value: id }, [instances.get(id).answer.label, shortId(id)].filter(Boolean).join(" "))));
  }
  choice.value = selected;
}

function showStore({ store, closed }) {
  const healthy = store.error === null && !closed;
  $("store").className = `status ${healthy ? "good" : "bad"}`;
  const text = store.error === null ? "store answers" : "store does not answer";
  $("store").firstChild.textContent = closed ? "closed for new requests" : text;
  $("store").title = store.error ?? "";
  away = store.error;
}

// What has gone wrong since the instance was started.
function showTotals({ refused, losses, unanswered_renewals: unanswered }) {
  const total = (number, text, meaning, isBad) => make("span", { title: meaning, class: isBad && number > 0 ? "bad" : "" }, make("strong", {}, count(number)), ` ${text}`);
  $("totals").replaceChildren(
    total(refused, "requests without a turn", "The key stayed held, too many requests waited, or the store could not be reached.", false),
    total(losses, "leases lost", "Their requests may have run beside others. The log tells why.", true),
    total(unanswered, "renewals without an answer", "The store was away or slow. Leases that are not renewed in time are lost.", true),
    make("span", { class: "muted" }, "since the start"),
  );
}

const poller = {
  paused: false,
  since: new Date(),
  timer: null,
  asking: false,
  again: false,

  // Asks now, or as soon as the questions under way are answered.
  async now() {
    clearTimeout(this.timer);
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    do {
      this.again = false;
      await this.ask();
    } while (this.again);
    this.asking = false;
    if (!this.paused && !document.hidden) this.timer = setTimeout(() => this.now(), view.period);
  },

  async ask() {
    try {
      await this.askOnce();
      this.since = new Date();
      document.body.classList.remove("stale");
      notice(away === null ? null : `The store does not answer: ${away}`);
    } catch (error) {
      document.body.classList.add("stale");
      notice(`Not up to date since ${this.since.toLocaleTimeString()}: ${reasonOf(error)}`);
    }
  },

  async askOnce() {
    const asked = view;
    const listing = asked === fleetView ? call("fleet", asked.fields()) : null;
    const others = Promise.allSettled([listing, details.refresh()]);
    heard(await call("instance", instanceView.fields()));
    await others;
    if (!listing || view !== asked || this.again) return;
    try {
      asked.show(await listing);
    } catch (error) {
      asked.unknown(reasonOf(error));
    }
  },
};

function choose(chosen) {
  view = chosen;
  view.first();
  $("rows").replaceChildren(make("p", { class: "empty" }, "…"));
  $("tab-instance").setAttribute("aria-selected", view === instanceView);
  $("tab-fleet").setAttribute("aria-selected", view === fleetView);
  $("records-choice").hidden = view !== fleetView;
  askForPage();
}

// The buttons work again when the page is there.
function askForPage() {
  $("previous").disabled = true;
  $("next").disabled = true;
  poller.now();
}

function debounced(work, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

function openFromAddress() {
  if (location.hash.startsWith("#key=")) {
    try {
      details.open(decodeURIComponent(location.hash.slice(5)));
    } catch {
      notice("The address names no key.");
    }
  }
}

$("plots").append(...plots.map((plot) => plot.element));
$("tab-instance").addEventListener("click", () => choose(instanceView));
$("tab-fleet").addEventListener("click", () => choose(fleetView));
$("prefix").addEventListener("input", debounced(() => { view.first(); askForPage(); }, 200));
$("records").addEventListener("change", () => choose(fleetView));
$("previous").addEventListener("click", () => { view.turn(-1); askForPage(); });
$("next").addEventListener("click", () => { view.turn(1); askForPage(); });
$("instances").addEventListener("change", (event) => { selected = event.target.value; showInstance(); });
$("pause").addEventListener("click", () => {
  poller.paused = !poller.paused;
  $("pause").setAttribute("aria-pressed", poller.paused);
  $("pause").textContent = poller.paused ? "Resume" : "Pause";
  if (!poller.paused) poller.now();
});
$("details").addEventListener("close", () => details.closed());
$("details").addEventListener("click", (event) => { if (event.target === $("details")) $("details").close(); });
$("close").addEventListener("click", () => $("details").close());
$("release-ask").addEventListener("click", () => details.ask(true));
$("release-no").addEventListener("click", () => details.ask(false));
$("release-yes").addEventListener("click", () => details.release());
$("settle-ask").addEventListener("click", () => details.askOutcome(true));
$("settle-no").addEventListener("click", () => details.askOutcome(false));
$("settle-form").addEventListener("submit", (event) => { event.preventDefault(); details.settle(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && !poller.paused) poller.now(); });
addEventListener("hashchange", openFromAddress);
openFromAddress();
poller.now();
