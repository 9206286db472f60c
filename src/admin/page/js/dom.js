// Elements are made node by node, and text is only ever text: nothing here parses HTML.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

function tag(text, kind = "") {
  return make("span", { class: `tag ${kind}` }, text);
}

// A table whose rows stay in place while their values change, so that neither focus nor selection is lost.
class Table {
  // Each column: { label, kind, cell }. `kind` is a class, `cell` makes the content of a cell from an item. The first cell is the key.
  constructor(columns, onOpen) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody");
    const heads = columns.map(({ label, kind }) => make("th", { class: kind, scope: "col" }, label));
    this.element = make("table", {}, make("thead", {}, make("tr", {}, heads)), this.body);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && getSelection().isCollapsed) onOpen(row.lockKey);
    });
  }

  show(items) {
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
