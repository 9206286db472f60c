// Values as text.

// What the words of the page mean.
const WORDS = {
  "State": "Whether this instance has a lease for the key, and whether one of its requests uses it.",
  "Mode": "Exclusive: one holder. Shared: any number of readers. Permits: so many holders at a time.",
  "Held for": "How long the longest turn has lasted.",
  "Waiting": "Requests of this instance that wait for their turn.",
  "Longest wait": "How long the first of them has waited.",
  "Holder": "The instance that has a lease for the key, by its host and its id.",
  "Time left": "When the lease ends unless it is renewed, or for how long the record is kept.",
  "Queue": "Instances that wait for the key in the store. Each stands for all of its requests.",
  "Acquisition": "The number of the lease among those of its instance. Instance and number are the owner in the log.",
  "Fingerprint": "A digest of the request that the key is held for: the holder works on an idempotent request.",
  "Highest token": "The highest fencing token that counts as handed out. Every later turn has a higher one.",
  "Token": "The fencing token of the turn: the resource refuses writers with a lower one.",
  "Turns per second": "A turn is one request's use of a key.",
  "Turns passed on": "Turns that began under a lease of this instance, without a call to the store.",
  "Mean time waited": "Of the requests whose turns began in the last second.",
  "Requests waiting": "Requests of this instance that wait for their turn, at all keys.",
  "Store answers in": "The time of a round trip on every connection for calls.",
  "between turns": "This instance has the lease, and its next request has not begun yet.",
  "held elsewhere": "Requests of this instance wait for a key that another instance holds.",
  "record": "The kept answer of an idempotent request, or the result of work that is done once.",
  "outcome unknown": "A tombstone: the request was begun and cut off. It does not run again; a person has to find out what it did.",
  "process died": "The request runs at most once, and its process has not extended its claim for the time of a lease. It does not run again; a person has to find out what it did.",
  "answer not kept": "A tombstone: the request was completed, and its answer could not be kept.",
  "unreadable": "Another program, or another version, has written this value.",
  "idempotent": "The key is claimed by a request with an Idempotency-Key, or by work that is done once.",
};

function count(number) {
  return number.toLocaleString("en-US");
}

// A duration in milliseconds as [number, unit].
function durationParts(ms) {
  if (ms === 0) return ["0", "ms"];
  if (ms < 0.1) return ["<0.1", "ms"];
  if (ms < 10) return [ms.toFixed(1), "ms"];
  if (ms < 1000) return [ms.toFixed(0), "ms"];
  const seconds = ms / 1000;
  if (seconds < 10) return [seconds.toFixed(1), "s"];
  if (seconds < 120) return [seconds.toFixed(0), "s"];
  if (seconds < 7200) return [(seconds / 60).toFixed(0), "min"];
  if (seconds < 172800) return [(seconds / 3600).toFixed(0), "h"];
  return [(seconds / 86400).toFixed(0), "days"];
}

function duration(ms) {
  return durationParts(ms).join(" ");
}

function bytes(number) {
  return number < 1024 ? `${number} bytes` : `${(number / 1024).toFixed(1)} KiB`;
}

// The first part of an instance's UUID: enough to tell the instances of a fleet apart.
function shortId(instance) {
  return instance.slice(0, 8);
}

// The mode of a key with so many holders: "4 of 4 permits", "shared by 3".
function modeName(holders) {
  if (holders.length === 0) return "";
  const { name, of } = holders[0].mode;
  if (of) return `${count(holders.length)} of ${count(of)} permit${of === 1 ? "" : "s"}`;
  return holders.length > 1 ? `${name} by ${count(holders.length)}` : name;
}

// A record or a tombstone, as a tag.
function recordTag({ kind }) {
  if (kind === "unknown") return tag("outcome unknown", "lost");
  if (kind === "not_kept") return tag("answer not kept", "lost");
  if (kind === "unreadable") return tag("unreadable", "lost");
  return tag("record");
}

// Characters that are not seen, or that change the order of the characters around them.
const INVISIBLE = /[\p{Default_Ignorable_Code_Point}\u2028\u2029]/u;

// A key as nodes, in which no character can hide.
function keyNodes(key) {
  return key.split(new RegExp(`(${INVISIBLE.source})`, "u")).map((part) => {
    if (!INVISIBLE.test(part)) return part;
    const code = part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return make("span", { class: "invisible" }, `U+${code}`);
  });
}
