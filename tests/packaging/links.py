#!/usr/bin/env python3
"""Checks the links within the crate's documentation, and fails for those that lead nowhere.

rustdoc checks that items exist, but neither their headings nor whether they are hidden. Links with `::` lead to other crates, and so does
DISPATCHER, from the documentation of a trait that every type implements: those pages are not built here.
"""

import os
import re
import sys
from html import unescape
from urllib.parse import unquote

folder, crate = sys.argv[1], sys.argv[2]
headings = {}
DISPATCHER = "dispatcher#setting-the-default-subscriber"


def headings_of(page):
    if page not in headings:
        with open(page, encoding="utf-8") as file:
            headings[page] = {unquote(unescape(id)) for id in re.findall(r'\bid="([^"]+)"', file.read())}
    return headings[page]


def target_of(page, path):
    target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    return os.path.join(target, "index.html") if os.path.isdir(target) else target


def is_dead(page, link):
    path, _, heading = unquote(link).partition("#")
    target = target_of(page, path)
    if not target.startswith(os.path.join(folder, crate) + os.sep):
        return False
    return not os.path.exists(target) or bool(heading) and heading not in headings_of(target)


pages = [os.path.join(at, name) for at, _, names in os.walk(os.path.join(folder, crate)) for name in names if name.endswith(".html")]
links, dead = 0, set()
for page in pages:
    with open(page, encoding="utf-8") as file:
        found = {unescape(link) for link in re.findall(r'href="([^"]+)"', file.read())}
    local = [link for link in found if not re.match("[a-z]+:", link) and "::" not in link and link != DISPATCHER]
    links += len(local)
    dead.update((os.path.relpath(page, folder), link) for link in local if is_dead(page, link))

for page, link in sorted(dead):
    print(f"{page}: the link {link} leads nowhere", file=sys.stderr)
print(f"   {links} links on {len(pages)} pages")
sys.exit(bool(dead) or not pages)
