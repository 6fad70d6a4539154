// Tables, dialogs and notices.

import { act, plan } from "./api.js";
import { breakable, count, counted, h, replace, time } from "./dom.js";

const isName = (column) => /\b(name|why)\b/.test(column.class ?? "");

/**
 * A table whose rows are updated in place: what is selected, focused or pointed at stays.
 *
 * `columns`: `{title, render(row), class, order}`; `render` gives a text or an element. `keyOf(row)` tells rows apart.
 * `open(row)` is called by a click and by Enter. `sorted`: `{order, descending, change(order, descending)}`.
 */
export function table({ columns, keyOf, open, sorted, empty, class: kind = "" }) {
  const body = h("tbody");
  const heads = h("tr");
  const none = h("div", { class: "empty" }, empty ?? "Nothing here.");
  const element = h("div", {}, h("div", { class: "scroll" }, h("table", { class: kind }, h("thead", {}, heads), body)), none);
  const rows = new Map();
  let order = sorted?.order;
  let descending = sorted?.descending;

  const drawHeads = () => {
    replace(
      heads,
      columns.map((column) => {
        if (!column.order || !sorted) return h("th", { class: column.class, scope: "col" }, column.title);
        const isCurrent = column.order === order;
        const sort = isCurrent ? (descending ? "descending" : "ascending") : "none";
        const button = h("button", { type: "button", onclick: () => {
          descending = isCurrent ? !descending : column.order !== "name" && column.order !== "topic";
          order = column.order;
          drawHeads();
          sorted.change(order, descending);
        } }, column.title, h("span", { "aria-hidden": "true" }, isCurrent ? (descending ? "↓" : "↑") : ""));
        return h("th", { class: column.class, scope: "col", "aria-sort": sort }, button);
      }),
    );
  };
  drawHeads();

  const make = (key) => {
    const cells = columns.map((column) => ({ element: h("td", { class: column.class }), text: null }));
    const row = { element: h("tr", { class: open ? "row" : "" }, cells.map((cell) => cell.element)), cells, value: null };
    row.element.dataset.key = key;
    if (open) {
      row.element.addEventListener("click", (event) => {
        // A link or a button in the row has its own meaning, and so has the selection of a text.
        if (event.target.closest("a, button, input") || String(getSelection())) return;
        open(row.value, row.element);
      });
    }
    row.element.open = () => open && open(row.value, row.element);
    return row;
  };

  return {
    element,
    body,
    update(values) {
      none.hidden = values.length > 0;
      element.firstChild.hidden = values.length === 0;
      const wanted = new Set(values.map(keyOf));
      for (const [key, row] of rows) {
        if (wanted.has(key)) continue;
        row.element.remove();
        rows.delete(key);
      }
      let before = null;
      for (const value of values) {
        const key = keyOf(value);
        const row = rows.get(key) ?? make(key);
        rows.set(key, row);
        row.value = value;
        columns.forEach((column, at) => {
          const cell = row.cells[at];
          const shown = column.render(value);
          if (shown instanceof Node) {
            const text = column.stamp ? column.stamp(value) : shown.outerHTML;
            if (text !== cell.text) replace(cell.element, isName(column) ? breakable(shown) : shown);
            cell.text = text;
          } else if (String(shown ?? "") !== cell.text) {
            cell.text = String(shown ?? "");
            cell.element.textContent = cell.text;
            if (isName(column)) breakable(cell.element);
            cell.element.classList.toggle("zero", cell.text === "0" || cell.text === "0 B");
          }
        });
        const next = before ? before.nextElementSibling : body.firstElementChild;
        if (next !== row.element) body.insertBefore(row.element, next);
        before = row.element;
      }
    },
  };
}

/** Buttons to the page before and behind; `change(offset)`. */
export function pager(size, change) {
  const text = h("span");
  const back = h("button", { type: "button", class: "small", title: "Page before ([)", onclick: () => change(Math.max(offset - size, 0)) }, "‹ Back");
  const on = h("button", { type: "button", class: "small", title: "Next page (])", onclick: () => change(offset + size) }, "Next ›");
  let offset = 0;
  back.dataset.key = "[";
  on.dataset.key = "]";
  return {
    element: h("div", { class: "pager" }, text, back, on),
    update(page, noun) {
      offset = page.offset;
      const end = Math.min(offset + page.rows.length, page.total);
      text.textContent = page.total ? `${count(offset + 1)}–${count(end)} of ${counted(page.total, noun)}` : `no ${noun}s`;
      back.disabled = offset === 0;
      on.disabled = end >= page.total;
    },
  };
}

export function tile(label, kind = "") {
  const value = h("dd");
  const element = h("dl", { class: `tile ${kind}` }, h("dt", { title: label }, label), value);
  return {
    element,
    update(text, small) {
      replace(value, text, small ? h("small", {}, ` ${small}`) : null);
    },
  };
}

export function card(title, { end, flush } = {}, ...children) {
  return h("section", { class: `card ${flush ? "flush" : ""}` }, title ? h("header", {}, h("h2", {}, title), end ? h("span", { class: "end" }, end) : null) : null, children);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), breakable(h("dd", {}, value))]));
}

export function toast(text, isBad = false) {
  const element = h("div", { class: `toast ${isBad ? "bad" : ""}` }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), isBad ? 12000 : 6000);
}

export function notice(text, kind = "") {
  return h("div", { class: `notice ${kind}` }, text);
}

/** A dialog that closes by Esc and takes itself away. */
export function dialog(...children) {
  const element = h("dialog", {}, children);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return element;
}

/** Messages of a plan, in few columns. */
function sample(messages) {
  return h(
    "div",
    { class: "scroll sample" },
    h("table", {}, h("tbody", {}, messages.map((message) => h("tr", {}, h("td", { class: "mono fixed" }, message.id), h("td", { class: "fixed wide" }, time(message.publishTime)), h("td", { class: "mono" }, message.value.text.slice(0, 160)))))),
  );
}

/**
 * Ask for what an action needs, show what it would do, and do it if the user says so.
 *
 * `fields`: `{name, label, type, options, value, hint}`. The plan is that of the server, in figures.
 */
export function ask({ title, verb, given, fields = [], done }) {
  const shown = h("div");
  const values = () => ({ ...given, ...Object.fromEntries(fields.map((field) => [field.name, read(inputs[field.name], field)])) });
  const inputs = {};
  const typed = h("input", { type: "text", autocomplete: "off", "aria-label": "Type the name" });
  const typedField = h("label", { class: "field", hidden: true });
  const go = h("button", { type: "submit", class: "primary", disabled: true }, verb);
  const look = h("button", { type: "button", onclick: () => preview() }, "Show what it would do");
  const cancel = h("button", { type: "button", onclick: () => element.close() }, "Cancel");
  let planned = null;
  let wanted = 0;

  const stale = () => {
    planned = null;
    go.disabled = true;
    replace(shown);
    typedField.hidden = true;
  };
  const allow = () => {
    go.disabled = !planned || (planned.name !== "" && typed.value !== planned.name);
  };
  const preview = async () => {
    stale();
    const turn = ++wanted;
    try {
      const next = await plan(values());
      if (turn !== wanted) return;
      planned = next;
      replace(shown, h("div", { class: `plan ${planned.isDangerous ? "dangerous" : ""}` }, h("ul", {}, planned.text.map((text) => h("li", {}, text)))), planned.messages.length ? sample(planned.messages) : null);
      go.classList.toggle("danger", planned.isDangerous);
      if (planned.name) {
        typed.value = "";
        replace(typedField, h("span", {}, "Type ", h("code", {}, planned.name), " to go on"), typed);
        typedField.hidden = false;
        typed.focus();
      } else go.focus();
      allow();
    } catch (error) {
      if (turn === wanted) replace(shown, notice(error.message, "bad"));
    }
  };
  typed.addEventListener("input", allow);
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        if (!planned) {
          await preview();
          return;
        }
        if (go.disabled) return;
        go.disabled = true;
        try {
          const answer = await act(values());
          element.close();
          toast(answer.text);
          if (done) done(answer);
        } catch (error) {
          replace(shown, notice(error.message, "bad"));
          planned = null;
        }
      },
    },
    h("h2", {}, title),
    fields.map((field) => {
      inputs[field.name] = input(field);
      inputs[field.name].addEventListener("input", stale);
      return h("label", { class: "field" }, field.label, inputs[field.name], field.hint ? h("span", { class: "muted" }, field.hint) : null);
    }),
    shown,
    typedField,
    h("div", { class: "buttons" }, cancel, fields.length ? look : null, go),
  );
  const element = dialog(form);
  if (fields.length) inputs[fields[0].name].focus();
  else preview();
}

function input(field) {
  if (field.type === "choice") return h("select", { name: field.name }, field.options.map(([value, text]) => h("option", { value }, text)));
  if (field.type === "text area") return h("textarea", { name: field.name, value: field.value ?? "", spellcheck: "false" });
  return h("input", { name: field.name, type: field.type ?? "text", value: field.value ?? "", autocomplete: "off", min: field.type === "number" ? 1 : null });
}

function read(element, field) {
  return field.convert ? field.convert(element.value) : element.value;
}
