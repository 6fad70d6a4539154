// The list of topics: search, order, pages.

import { age, bytes, count, counted, h, rate, replace, shortName, tag, to } from "./dom.js";
import { sparkline } from "./charts.js";
import { card, pager, table } from "./widgets.js";

const PAGE = 50;

export function topics(root, context) {
  const query = context.query;
  const search = h("input", { type: "search", placeholder: "Search names (/)", value: query.search ?? "", "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
  const list = table({
    columns: [
      { title: "topic", order: "name", class: "name", render: (row) => h("span", {}, h("a", { href: to(["topic", row.name]), title: row.name }, shortName(row.name)), row.partitions ? [" ", tag(counted(row.partitions, "partition"))] : null, row.stuck ? [" ", tag(`${count(row.stuck)} stuck`, "warn")] : null) },
      { title: "last minute", class: "spark wide", render: (row) => sparkline(row.history), stamp: (row) => JSON.stringify(row.history.at(-1) ?? null) },
      { title: "in/s", order: "in", class: "number", render: (row) => rate(row.rateIn) },
      { title: "out/s", order: "out", class: "number", render: (row) => rate(row.rateOut) },
      { title: "backlog", order: "backlog", class: "number", render: (row) => count(row.backlog) },
      { title: "oldest", order: "oldest", class: "number", render: (row) => age(row.oldest) },
      { title: "storage", order: "storage", class: "number wide", render: (row) => bytes(row.storage) },
      { title: "subscriptions", order: "subscriptions", class: "number wide", render: (row) => count(row.subscriptions) },
      { title: "producers", class: "number wide", render: (row) => count(row.producers) },
      { title: "consumers", class: "number wide", render: (row) => count(row.consumers) },
    ],
    keyOf: (row) => row.name,
    open: (row) => (location.hash = to(["topic", row.name])),
    sorted: { order: query.order ?? "name", descending: query.descending === "1", change: (order, descending) => ask({ order, descending: descending ? "1" : "", offset: "" }) },
    empty: "No topic has such a name.",
  });
  const pages = pager(PAGE, (offset) => ask({ offset: offset || "" }));
  const total = h("span", { class: "muted" });
  let stop = () => {};
  const ask = (next) => {
    context.remember(next);
    stop();
    stop = context.follow({ view: "topics", ...query, count: PAGE }, (page) => {
      // The list may have become shorter than where this page begins.
      if (!page.rows.length && page.offset) {
        ask({ offset: "" });
        return;
      }
      list.update(page.rows);
      pages.update(page, "topic");
      total.textContent = `${count(page.all)} in the store`;
    });
  };
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => ask({ search: search.value.trim(), offset: "" }), 200);
  });
  context.onEnd(() => clearTimeout(timer));
  replace(root, h("div", { class: "head" }, h("h1", {}, "Topics"), total), h("div", { class: "controls" }, search), card("", { flush: true }, list.element, pages.element));
  ask({});
}
