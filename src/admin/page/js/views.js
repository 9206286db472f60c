// The two tables: the keys of the instance that answers, and the keys of the whole fleet.

const instanceView = {
  table: new Table([
    { label: "Key" },
    { label: "State", cell: ({ leases }) => stateTag(leases) },
    { label: "Mode", cell: ({ leases: [lease] }) => (lease ? modeName(lease.mode) : "") },
    { label: "Held for", number: true, cell: ({ leases }) => (isHeld(leases) ? duration(heldFor(leases)) : "") },
    { label: "Token", number: true, cell: ({ leases: [lease] }) => lease?.token ?? "" },
    { label: "Waiting", number: true, cell: ({ waiting }) => (waiting > 0 ? tag(count(waiting), "waiting") : "") },
    { label: "Longest wait", number: true, cell: ({ longest_wait_ms: ms }) => (ms === null ? "" : duration(ms)) },
  ], (key) => details.open(key)),
  offset: 0,
  period: 1000,

  fields() {
    return { prefix: $("prefix").value, offset: this.offset };
  },

  show(answer) {
    this.answer = answer;
    this.table.show(answer.keys);
    const from = answer.total === 0 ? 0 : answer.offset + 1;
    $("range").textContent = `${count(from)}–${count(answer.offset + answer.keys.length)} of ${count(answer.total)}`;
    $("previous").disabled = answer.offset === 0;
    $("next").disabled = answer.offset + answer.keys.length >= answer.total;
    showEmpty(answer.total === 0, this.table, "This instance holds no key and waits for none");
  },

  first() {
    this.offset = 0;
  },

  turn(pages) {
    this.offset = Math.max(0, this.offset + pages * this.answer.page_size);
  },
};

const fleetView = {
  table: new Table([
    { label: "Key" },
    { label: "Holder", cell: (item) => holderCell(item) },
    { label: "Mode", cell: (item) => (item.holders.length > 0 ? modeName(item.holders[0].mode) : "") },
    { label: "Time left", number: true, cell: (item) => timeLeft(item) },
    { label: "Token", number: true, cell: (item) => item.token },
    { label: "Queue", number: true, cell: (item) => (item.queue > 0 ? tag(count(item.queue), "waiting") : "") },
  ], (key) => details.open(key)),
  // The cursors of the pages up to this one; the first page has none.
  cursors: [""],
  period: 2000,

  fields() {
    return { prefix: $("prefix").value, cursor: this.cursors.at(-1) };
  },

  show(answer) {
    this.answer = answer;
    this.table.show(answer.keys);
    $("range").textContent = `Page ${count(this.cursors.length)}: ${count(answer.keys.length)} keys`;
    $("previous").disabled = this.cursors.length === 1;
    $("next").disabled = answer.next === null;
    const more = answer.next === null ? "" : " on this page; there are more pages";
    showEmpty(answer.keys.length === 0, this.table, `No keys${more}`);
  },

  first() {
    this.cursors = [""];
  },

  turn(pages) {
    if (pages > 0) this.cursors.push(this.answer.next);
    else this.cursors.pop();
  },
};

function showEmpty(isEmpty, table, text) {
  const prefix = $("prefix").value;
  const shown = isEmpty ? make("p", { class: "empty" }, prefix ? `${text} that begins with “${prefix}”.` : `${text}.`) : table.element;
  const now = $("rows").firstChild;
  if (isEmpty ? now?.textContent !== shown.textContent : now !== shown) $("rows").replaceChildren(shown);
}

function isHeld(leases) {
  return leases.some(({ turns }) => turns > 0);
}

function heldFor(leases) {
  return Math.max(...leases.map(({ held_ms: ms }) => ms));
}

function stateTag(leases) {
  const loss = leases.find((lease) => lease.loss !== null)?.loss;
  if (loss) return make("span", { class: "tag lost", title: loss }, "lost");
  if (isHeld(leases)) return tag("held", "here");
  return tag(leases.length > 0 ? "between turns" : "held elsewhere");
}

function holderCell({ holders, record, error }) {
  if (error) return make("span", { class: "tag lost", title: error }, "unreadable");
  if (record) return tag("record");
  if (holders.length === 0) return tag("free");
  const { instance, label, here } = holders[0];
  const id = make("code", { class: "id", title: instance }, shortId(instance));
  return [
    label === null ? null : `${label} `,
    id,
    here ? " " : null,
    here ? tag("this instance", "here") : null,
    holders.length > 1 ? ` and ${count(holders.length - 1)} more` : null,
  ];
}

function timeLeft({ holders, record }) {
  const left = record ? record.remaining_ms : holders[0]?.remaining_ms;
  return left === undefined || left === null ? "" : duration(left);
}
