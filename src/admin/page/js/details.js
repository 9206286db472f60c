// The details of one key, refreshed while they are open, and what an operator can do: force a release, or write the outcome of a request
// whose process has died.

// The question before a forced release, and its consequence.
function warningOf({ holders, record }) {
  if (record) return ["Remove this record?", "Without the record, a repetition of the request runs again."];
  const [question, who] = holders.length > 1
    ? [`Take this key away from all of its ${count(holders.length)} holders?`, "The holders are not stopped: each goes on working until its next renewal tells it of the loss. Until then more requests than allowed"]
    : ["Take this key away from its holder?", "The holder is not stopped: it goes on working until its next renewal tells it of the loss. Until then two requests"];
  return [question, `${who} may hold the key, and only their tokens tell them apart.`];
}

const details = {
  key: null,
  mayRelease: false,
  maySettle: false,

  open(key) {
    this.key = key;
    $("details-key").replaceChildren(...keyNodes(key));
    $("details-state").textContent = "";
    $("details-body").replaceChildren();
    $("release-result").textContent = "";
    this.ask(false);
    this.askOutcome(false);
    $("release").hidden = true;
    $("settle").hidden = true;
    if (!$("details").open) $("details").showModal();
    history.replaceState(null, "", `#key=${encodeURIComponent(key)}`);
    poller.now();
  },

  closed() {
    this.key = null;
    history.replaceState(null, "", location.pathname + location.search);
  },

  async refresh() {
    const key = this.key;
    if (key === null) return;
    try {
      const found = await call("key", { key });
      if (this.key === key) this.show(found);
    } catch (error) {
      if (this.key === key) this.unknown(reasonOf(error));
    }
  },

  // What was shown before is not true any more. A question that was asked stays, because its answer is compared by the store.
  unknown(reason) {
    $("details-state").textContent = `Not known: ${reason}`;
    $("details-body").replaceChildren();
    if ($("release-confirm").hidden) $("release").hidden = true;
    if ($("settle-form").hidden) $("settle").hidden = true;
  },

  show(found) {
    this.found = found;
    const taken = found.holders.length > 0 || found.record !== null;
    const parts = [];
    sightings.add([found]);
    for (const holder of found.holders) parts.push(holderCard(holder));
    if (found.record) parts.push(recordCard(found.record));
    if (found.local) parts.push(section("In this process", localList(found.local)));
    if (found.queue.length > 0) parts.push(section(`Queue of the store (${count(found.queue.length)})`, queueList(found)));
    parts.push(section(word("Highest token"), make("code", {}, found.token)));
    $("details-state").textContent = stateOf(found);
    $("details-body").replaceChildren(...parts);
    $("release").hidden = !this.mayRelease || (!taken && $("release-confirm").hidden);
    $("settle").hidden = !this.maySettle || (!found.holders[0]?.abandoned && $("settle-form").hidden);
  },

  // Shows or hides the confirmation.
  ask(asking) {
    $("release-ask").hidden = asking;
    $("release-confirm").hidden = !asking;
    if (asking) {
      // The holder or the record that is asked about. When the answer is given, the key may be in other hands.
      const { holders: [holder], record } = this.found;
      this.asked = { owner: holder ? ownerOf(holder) : "", record: record ? "1" : "" };
      const [question, consequence] = warningOf(this.found);
      $("release-warning").replaceChildren(make("strong", {}, question), ` ${consequence}`);
      $("release-result").textContent = "";
      $("release-no").focus();
    }
  },

  // Shows or hides the form for the outcome of a request.
  askOutcome(asking) {
    $("settle-ask").hidden = asking;
    $("settle-form").hidden = !asking;
    if (asking) {
      // The claim that is asked about. Its process may be alive after all, and end it meanwhile.
      this.claim = ownerOf(this.found.holders[0]);
      $("settle-form").reset();
      $("release-result").textContent = "";
      $("settle-no").focus();
    }
  },

  release() {
    const tell = ({ released }) => (released ? "Released." : "Nothing was released: the key was free already.");
    this.change("force_release", this.asked, $("release-yes"), "released", tell);
  },

  settle() {
    const fields = Object.fromEntries(new FormData($("settle-form")));
    this.change("settle", { owner: this.claim, ...fields }, $("settle-yes"), "written", () => "Written.");
  },

  // Changes the key as the operator has said, and tells the result.
  async change(name, fields, button, done, tell) {
    const key = this.key;
    button.disabled = true;
    try {
      const answer = await call(name, { key, ...fields });
      // The result is of no interest to another key, whose details were opened meanwhile.
      if (this.key !== key) return;
      $("release-result").textContent = tell(answer);
      this.ask(false);
      this.askOutcome(false);
      poller.now();
    } catch (error) {
      if (this.key !== key) return;
      $("release-result").textContent = `${error instanceof Refused ? "Not" : "Perhaps not"} ${done}: ${reasonOf(error)}.`;
    } finally {
      button.disabled = false;
    }
  },
};

function stateOf({ holders, record, queue }) {
  const waiting = queue.length > 0 ? `, ${count(queue.length)} in the queue` : "";
  if (record) return `Recorded${waiting}`;
  if (holders.length === 0) return `Free${waiting}`;
  if (holders[0].mode.of) return `${modeName(holders)} held${waiting}`;
  return (holders.length === 1 ? "Held" : `Held by ${count(holders.length)}`) + waiting;
}

function section(title, ...content) {
  return make("section", {}, make("h3", {}, title), content);
}

function list(entries) {
  const pairs = entries.filter((entry) => entry !== null);
  return make("dl", {}, pairs.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]).flat());
}

function holderCard(holder) {
  return section("Holder", make("div", { class: "card" }, list([
    ["Host", [holder.label ?? "–", " ", holder.here ? tag("this instance", "here") : ""]],
    ["Instance", make("code", {}, holder.instance)],
    [word("Acquisition"), make("code", {}, holder.attempt)],
    ["Mode", holder.mode.of ? `one of ${count(holder.mode.of)} permits` : holder.mode.name],
    ["Held for", heldCell({ holders: [holder] })],
    ["Lease ends in", [duration(holder.remaining_ms), make("span", { class: "muted" }, " unless renewed")]],
    holder.abandoned ? ["Request", tag("process died", "lost")] : null,
    holder.fingerprint === null ? null : [word("Fingerprint"), make("code", {}, holder.fingerprint)],
  ])));
}

function recordCard(record) {
  return section("Record", make("div", { class: "card" }, list([
    ["Says", recordTag(record)],
    ["Size", bytes(record.bytes)],
    record.remaining_ms === null ? null : ["Kept for", duration(record.remaining_ms)],
  ])));
}

function queueList({ queue }) {
  return make("ol", {}, queue.slice(0, 200).map(({ instance, attempt, here, label }) => make("li", {},
    label === null ? null : `${label} `, make("code", { class: "id", title: instance }, `${shortId(instance)}:${attempt}`), " ", here ? tag("this instance", "here") : "")));
}

function localList({ leases, waiting, longest_wait_ms: longest }) {
  const losses = leases.filter((lease) => lease.loss !== null);
  return list([
    ["State", stateTag(leases)],
    isHeld(leases) ? ["Held for", duration(heldFor(leases))] : null,
    isHeld(leases) && leases[0].token !== null ? [word("Token"), make("code", {}, leases[0].token)] : null,
    ["Requests waiting", count(waiting)],
    longest === null ? null : ["Longest wait", duration(longest)],
    losses.length > 0 ? ["Loss", losses[0].loss] : null,
  ]);
}
