// The store as a whole: rates, what is stuck and why, the busiest topics.

import { age, bytes, count, counted, h, rate, replace, setServerTime, short, tag, to, topicLink } from "./dom.js";
import { legend, sparkline, timeChart } from "./charts.js";
import { card, notice, table, tile } from "./widgets.js";

const RATES = [
  { key: "rateIn", label: "published", class: "key-in", format: rate },
  { key: "rateOut", label: "acknowledged", class: "key-out", format: rate },
];
const BACKLOG = [{ key: "backlog", label: "backlog", class: "key-backlog", format: short }];

function stuckLink(each) {
  return each.subscription ? h("a", { href: to(["subscription", each.topic, each.subscription]), title: each.subscription }, each.subscription) : "";
}

export function overview(root, context) {
  const tiles = {
    rateIn: tile("published", "key key-in"),
    rateOut: tile("acknowledged", "key key-out"),
    backlog: tile("backlog", "key key-backlog"),
    storage: tile("storage"),
    topics: tile("topics"),
    subscriptions: tile("subscriptions"),
    producers: tile("producers"),
    consumers: tile("consumers"),
  };
  const rates = timeChart(RATES, { label: "Messages a second, published and acknowledged" });
  const backlog = timeChart(BACKLOG, { label: "Messages in the backlog" });
  const warnings = h("div");
  const stuckTitle = h("span", { class: "muted" });
  const stuck = table({
    columns: [
      { title: "subscription", class: "name", render: stuckLink },
      { title: "topic", class: "name", render: (row) => topicLink(row.topic) },
      { title: "why", class: "why", render: (row) => (row.isWaiting ? h("span", { class: "muted" }, row.why) : row.why) },
      { title: "backlog", class: "number", render: (row) => (row.backlog ? count(row.backlog) : "") },
      { title: "oldest", class: "number", render: (row) => age(row.since) },
    ],
    keyOf: (row) => `${row.topic}\n${row.subscription}\n${row.why.slice(0, 12)}`,
    open: (row) => (location.hash = row.subscription ? to(["subscription", row.topic, row.subscription]) : to(["topic", row.topic])),
    empty: "Nothing is stuck.",
  });
  const busiest = table({
    columns: [
      { title: "topic", class: "name", render: (row) => topicLink(row.name) },
      { title: "last minute", class: "spark wide", render: (row) => sparkline(row.history), stamp: (row) => JSON.stringify(row.history.at(-1)) },
      { title: "in/s", class: "number", render: (row) => rate(row.rateIn) },
      { title: "out/s", class: "number", render: (row) => rate(row.rateOut) },
      { title: "backlog", class: "number", render: (row) => count(row.backlog) },
    ],
    keyOf: (row) => row.name,
    open: (row) => (location.hash = to(["topic", row.name])),
    empty: "No messages come or go.",
  });
  replace(
    root,
    h("div", { class: "head" }, h("h1", {}, "Overview")),
    warnings,
    h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
    h("div", { class: "grid" }, card("Messages a second", { end: legend(RATES) }, rates.element), card("Backlog of all subscriptions", {}, backlog.element)),
    card("What is stuck, and why", { flush: true, end: stuckTitle }, stuck.element),
    card("Busiest topics", { flush: true }, busiest.element),
  );
  context.follow({ view: "overview" }, (value) => {
    setServerTime(value.time);
    tiles.rateIn.update(rate(value.rateIn), "/s");
    tiles.rateOut.update(rate(value.rateOut), "/s");
    tiles.backlog.update(short(value.backlog));
    tiles.storage.update(bytes(value.storage));
    tiles.topics.update(short(value.topics));
    tiles.subscriptions.update(short(value.subscriptions));
    tiles.producers.update(short(value.producers));
    tiles.consumers.update(short(value.consumers));
    const points = value.history.map(([time, rateIn, rateOut, waiting]) => ({ time, rateIn, rateOut, backlog: waiting }));
    // The first sample has no one before it, and so only a guess of the rates.
    rates.update(points.slice(1));
    backlog.update(points.slice(1));
    stuck.update(value.stuck);
    replace(stuckTitle, value.stuckTotal > value.stuck.length ? `${count(value.stuckTotal)}, of which ${count(value.stuck.length)} are shown` : value.stuckTotal ? tag(count(value.stuckTotal), "warn") : tag("all goes on", "good"));
    busiest.update(value.busiest);
    const behind = value.unrecovered.length;
    replace(warnings, behind ? notice(`${counted(behind, "topic")} not recovered since the machine was restarted or the store was copied; their figures may be behind: ${value.unrecovered.slice(0, 3).join(", ")}`) : null);
  });
}
