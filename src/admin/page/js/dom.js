// Elements are made node by node, and text is only ever text: nothing here parses HTML.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

function tag(text, kind = "", title = WORDS[text]) {
  return make("span", title ? { class: `tag ${kind}`, title } : { class: `tag ${kind}` }, text);
}

// A word of ours, with its meaning as a tooltip.
function word(text, meaning = WORDS[text]) {
  return meaning ? make("abbr", { title: meaning }, text) : text;
}

// A table whose rows stay in place while their values change, so that neither focus nor selection is lost.
class Table {
  // Each column: { label, kind, cell, sort }. `kind` is a class, `cell` makes the content of a cell from an item, and `sort` the number by
  // which rows can be sorted, the largest first. The first cell is the key.
  constructor(columns, onOpen, onSort) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody");
    const heads = columns.map((column) => make("th", { class: column.kind, scope: "col" }, this.head(column, onSort)));
    this.element = make("table", {}, make("thead", {}, make("tr", {}, heads)), this.body);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && getSelection().isCollapsed) onOpen(row.lockKey);
    });
  }

  head(column, onSort) {
    if (!column.sort) return word(column.label);
    column.button = make("button", { class: "sort", type: "button", title: `${WORDS[column.label] ?? ""} Click: the largest first, or not.` }, column.label);
    column.button.addEventListener("click", () => {
      this.sorted = this.sorted === column ? null : column;
      for (const { button } of this.columns) button?.parentElement.setAttribute("aria-sort", button === this.sorted?.button ? "descending" : "none");
      onSort();
    });
    return column.button;
  }

  show(all) {
    const { sort } = this.sorted ?? {};
    const items = sort ? all.toSorted((a, b) => sort(b) - sort(a)) : all;
    const rows = new Map(items.map((item) => [item.key, this.rows.get(item.key) ?? this.newRow(item.key)]));
    for (const item of items) this.fill(rows.get(item.key), item);
    for (const [key, row] of this.rows) if (!rows.has(key)) row.remove();
    let at = this.body.firstChild;
    for (const row of rows.values()) {
      if (row === at) at = at.nextSibling;
      else this.body.insertBefore(row, at);
    }
    this.rows = rows;
  }

  newRow(key) {
    const row = make("tr");
    row.lockKey = key;
    row.shown = [];
    for (const { label, kind } of this.columns) row.append(make("td", { "data-label": label, class: kind }));
    row.firstChild.append(make("button", { class: "key", type: "button" }, keyNodes(key)));
    return row;
  }

  fill(row, item) {
    this.columns.forEach(({ cell }, index) => {
      if (!cell) return;
      const content = [cell(item)].flat().filter((part) => part !== null && part !== "");
      const seen = content.map((part) => part.outerHTML ?? part).join("\n");
      if (row.shown[index] === seen) return;
      row.shown[index] = seen;
      row.children[index].replaceChildren(...content);
      row.children[index].classList.toggle("blank", content.length === 0);
    });
  }
}
