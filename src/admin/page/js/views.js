// The two tables: the keys of the instance that answers, and the keys of the whole fleet.

const instanceView = {
  table: new Table([
    { label: "Key", kind: "name" },
    { label: "State", kind: "state", cell: ({ leases }) => stateTag(leases) },
    { label: "Mode", kind: "mode", cell: ({ leases }) => modeName(leases) },
    { label: "Held for", kind: "number", cell: ({ leases }) => (isHeld(leases) ? duration(heldFor(leases)) : ""), sort: ({ leases }) => (isHeld(leases) ? heldFor(leases) : -1) },
    { label: "Waiting", kind: "number", cell: ({ waiting }) => waitingTag(waiting) },
    { label: "Longest wait", kind: "number", cell: ({ longest_wait_ms: ms }) => (ms === null ? "" : duration(ms)) },
  ], (key) => details.open(key), () => { instanceView.first(); askForPage(); }),
  offset: 0,
  period: 1000,

  fields() {
    // Sorted by the service, because the page has a part of the keys only.
    return { prefix: $("prefix").value, offset: this.offset, sort: this.table.sorted ? "held" : "" };
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
    // From the page that is shown: the list may have become shorter than the offset that was asked for.
    this.offset = Math.max(0, this.answer.offset + pages * this.answer.page_size);
  },
};

const fleetView = {
  table: new Table([
    { label: "Key", kind: "name" },
    { label: "Holder", kind: "holder", cell: (item) => holderCell(item) },
    { label: "Mode", kind: "mode", cell: ({ holders }) => modeName(holders) },
    { label: "Held for", kind: "number", cell: (item) => heldCell(item), sort: (item) => sightings.heldFor(item)?.ms ?? -1 },
    { label: "Time left", kind: "number", cell: (item) => timeLeft(item) },
    { label: "Queue", kind: "number", cell: ({ queue }) => waitingTag(queue), sort: ({ queue }) => queue },
  ], (key) => details.open(key), () => fleetView.show(fleetView.answer)),
  // The cursors of the pages up to this one; the first page has none.
  cursors: [""],
  period: 2000,

  fields() {
    return { prefix: $("prefix").value, cursor: this.cursors.at(-1), records: $("records").checked ? "1" : "" };
  },

  show(answer) {
    this.answer = answer;
    sightings.add(answer.keys);
    this.table.show(answer.keys);
    $("range").textContent = `Page ${count(this.cursors.length)}: ${count(answer.keys.length)} keys`;
    $("previous").disabled = this.cursors.length === 1;
    $("next").disabled = answer.next === null;
    const more = answer.next === null ? "" : " was found yet; the next page goes on looking for one";
    showEmpty(answer.keys.length === 0, this.table, `No key${more}`);
  },

  // What was shown before is not true any more, and what is true is not known.
  unknown(reason) {
    $("rows").replaceChildren(make("p", { class: "empty" }, `The keys of the fleet are not known: ${reason}`));
    $("range").textContent = "";
  },

  first() {
    this.cursors = [""];
  },

  turn(pages) {
    if (pages > 0) this.cursors.push(this.answer.next);
    else this.cursors.pop();
  },
};

// The store keeps no time of the grant. Of the leases of other instances, the page knows since when it has seen them. No owner is used twice,
// so an owner that is seen again has held the key in between.
const sightings = {
  seen: new Map(),

  add(keys) {
    const at = performance.now();
    for (const { holders } of keys) {
      for (const holder of holders) {
        const owner = ownerOf(holder);
        this.seen.set(owner, { first: this.seen.get(owner)?.first ?? at, last: at });
      }
    }
    for (const [owner, { last }] of this.seen) if (at - last > 10 * MINUTE) this.seen.delete(owner);
  },

  // How long a key has been held, or at least how long.
  heldFor({ holders }) {
    const times = holders.map((holder) => {
      if (holder.held_ms !== null) return { ms: holder.held_ms, least: false };
      const { first, last } = this.seen.get(ownerOf(holder));
      return { ms: last - first, least: true };
    });
    return times.length === 0 ? null : times.reduce((a, b) => (b.ms > a.ms ? b : a));
  },
};

function ownerOf({ instance, attempt }) {
  return `${instance}:${attempt}`;
}

function heldCell(item) {
  const held = sightings.heldFor(item);
  if (held === null) return "";
  if (!held.least) return duration(held.ms);
  return make("span", { title: "Since this page has first seen the holder, which is another instance." }, `≥ ${held.ms < 1000 ? "0 s" : duration(held.ms)}`);
}

function showEmpty(isEmpty, table, text) {
  const prefix = $("prefix").value;
  const shown = isEmpty ? make("p", { class: "empty" }, prefix ? `${text} that begins with “${prefix}”.` : `${text}.`) : table.element;
  const now = $("rows").firstChild;
  if (isEmpty ? now?.textContent !== shown.textContent : now !== shown) $("rows").replaceChildren(shown);
}

function waitingTag(number) {
  return number > 0 ? tag(count(number), "waiting") : "";
}

function isHeld(leases) {
  return leases.some(({ turns }) => turns > 0);
}

function heldFor(leases) {
  return Math.max(...leases.map(({ held_ms: ms }) => ms));
}

function stateTag(leases) {
  const loss = leases.find((lease) => lease.loss !== null)?.loss;
  if (loss) return tag("lost", "lost", loss);
  if (isHeld(leases)) return tag("held", "here");
  return tag(leases.length > 0 ? "between turns" : "held elsewhere");
}

function holderCell({ holders, record, error }) {
  if (error) return tag("unreadable", "lost", error);
  if (record) return recordTag(record);
  if (holders.length === 0) return tag("free");
  const { instance, label, here } = holders[0];
  const id = make("code", { class: "id", title: instance }, shortId(instance));
  return [
    label === null ? null : `${label} `,
    id,
    here ? " " : null,
    here ? tag("this instance", "here") : null,
    holders.length > 1 ? ` and ${count(holders.length - 1)} more` : null,
    holders[0].fingerprint === null ? null : " ",
    holders[0].fingerprint === null ? null : holders[0].abandoned ? tag("process died", "lost") : tag("idempotent"),
  ];
}

function timeLeft({ holders, record }) {
  const left = record ? record.remaining_ms : holders[0]?.remaining_ms;
  return left === undefined || left === null ? "" : duration(left);
}
