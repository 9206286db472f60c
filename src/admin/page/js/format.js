// Values as text.

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

function modeName(mode) {
  return mode.of ? `permit of ${count(mode.of)}` : mode.name;
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
