#!/usr/bin/env python3
"""Lists the types and traits of other crates in the public API, by the JSON of rustdoc, and fails for those that are not allowed.

Hidden items are not in the JSON. Implementations that the compiler or a blanket adds are not the crate's own choice, and are skipped.
"""

import json
import sys

# serde: the feature `json` is about serde's traits.
# pin_project: its macro writes a bound on a private type, which cannot be named.
ALLOWED = {
    *("std", "core", "alloc", "http", "http_body", "bytes", "tower_layer", "tower_service", "axum", "axum_core"),
    # `tokio_postgres` behind the feature `postgres`: a helper that makes the call of a fence.
    *("serde", "serde_core", "pin_project", "tokio_postgres"),
}

crate = json.load(open(sys.argv[1]))
index, paths, externals = crate["index"], crate["paths"], crate["external_crates"]


def references(node):
    """All ids of paths within a part of an item."""
    if isinstance(node, dict):
        if "id" in node and ("args" in node or "path" in node):
            yield node["id"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def is_own(item):
    implementation = item["inner"].get("impl")
    if implementation is None:
        return "use" not in item["inner"]
    return not implementation.get("is_synthetic") and implementation.get("blanket_impl") is None


def skipped():
    """The implementations that are not the crate's own, and their items."""
    for item in index.values():
        if not is_own(item) and "impl" in item["inner"]:
            yield from item["inner"]["impl"]["items"]


not_ours = set(skipped())
found = {}
for item in index.values():
    if item["crate_id"] != 0 or not is_own(item) or item["id"] in not_ours:
        continue
    if item["visibility"] not in ("public", "default") and "impl" not in item["inner"]:
        continue
    for id in references(item["inner"]):
        summary = paths.get(str(id))
        if summary is None or summary["crate_id"] == 0:
            continue
        name = externals[str(summary["crate_id"])]["name"]
        if name not in ALLOWED:
            found.setdefault("::".join(summary["path"]), set()).add(item["name"] or str(item["span"]["filename"]))

for path in sorted(found):
    print(f"{path}: {', '.join(sorted(found[path])[:8])}", file=sys.stderr)
sys.exit(1 if found else 0)
