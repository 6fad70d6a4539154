// Subscriptions: the list, and one with what it has acknowledged, its consumers, and what can be done to it.

import { age, breakable, bytes, count, counted, h, rate, replace, shortName, tag, to, topicLink } from "./dom.js";
import { rangeBar } from "./charts.js";
import { ask, card, notice, pager, table, tile } from "./widgets.js";

const PAGE = 50;

/** The list of subscriptions, of one topic or all; follows by itself. `query` may have topic, search and order. */
export function subscriptionTable(context, query, empty) {
  const list = table({
    columns: [
      { title: "subscription", order: "name", class: "name", render: (row) => h("a", { href: to(["subscription", row.topic, row.name]), title: row.name }, row.name) },
      query.topic ? null : { title: "topic", order: "topic", class: "name", render: (row) => topicLink(row.topic) },
      { title: "type", class: "fixed wide", render: (row) => (row.type === "None" ? h("span", { class: "muted" }, "–") : row.type) },
      { title: "backlog", order: "backlog", class: "number", render: (row) => count(row.backlog) },
      { title: "oldest", order: "oldest", class: "number", render: (row) => age(row.oldest) },
      { title: "out/s", order: "out", class: "number wide", render: (row) => rate(row.rateOut) },
      { title: "held", order: "held", class: "number wide", render: (row) => count(row.held) },
      { title: "consumers", order: "consumers", class: "number wide", render: (row) => count(row.consumers) },
      { title: "why it does not go on", order: "why", class: "why", render: (row) => row.why },
    ].filter(Boolean),
    keyOf: (row) => `${row.topic}\n${row.name}`,
    open: (row) => (location.hash = to(["subscription", row.topic, row.name])),
    sorted: { order: query.order, descending: query.descending === "1", change: (order, descending) => start({ order, descending: descending ? "1" : "", offset: "" }) },
    empty,
  });
  const pages = pager(PAGE, (offset) => start({ offset: offset || "" }));
  let stop = () => {};
  const start = (next) => {
    Object.assign(query, next);
    if (!query.topic) context.remember(next);
    stop();
    stop = context.follow({ view: "subscriptions", ...query, count: PAGE }, (page) => {
      if (!page.rows.length && page.offset) {
        start({ offset: "" });
        return;
      }
      list.update(page.rows);
      pages.update(page, "subscription");
    });
  };
  start({});
  const element = h("div", {}, list.element, pages.element);
  element.start = start;
  return element;
}

export function subscriptions(root, context) {
  const query = { order: "backlog", descending: "1", ...context.query };
  const list = subscriptionTable(context, query, "No subscription has such a name.");
  const search = h("input", { type: "search", placeholder: "Search subscriptions and topics (/)", value: query.search ?? "", "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => list.start({ search: search.value.trim(), offset: "" }), 200);
  });
  context.onEnd(() => clearTimeout(timer));
  replace(root, h("div", { class: "head" }, h("h1", {}, "Subscriptions")), h("div", { class: "controls" }, search), card("", { flush: true }, list));
}

function actionsOf(context, topic, name) {
  const of = (action, title, verb, fields, done = context.again) => () => ask({ title, verb, fields, given: { action, topic, subscription: name }, done });
  const place = [
    { name: "to", label: "where it goes on", hint: "earliest, latest, an id as 3:42, or a time as 2026-01-31 12:00", convert: moved },
  ];
  return h(
    "div",
    { class: "actions" },
    h("button", { type: "button", class: "small", onclick: of("skip", `Skip the first messages of ${name}`, "Skip", [{ name: "count", label: "how many", type: "number", value: "1" }]) }, "Skip…"),
    h("button", { type: "button", class: "small", onclick: of("reset", `Move ${name}`, "Move", place) }, "Reset…"),
    h("button", { type: "button", class: "small", onclick: of("expire", `Expire old messages of ${name}`, "Expire", [{ name: "seconds", label: "older than, in seconds", type: "number", value: "86400" }]) }, "Expire…"),
    h("button", { type: "button", class: "small danger", onclick: of("clear", `Clear the backlog of ${name}`, "Clear") }, "Clear…"),
    h("button", { type: "button", class: "small danger", onclick: of("delete-subscription", `Delete ${name}`, "Delete", [], () => (location.hash = to(["topic", topic, "subscriptions"]))) }, "Delete…"),
  );
}

/** Times are typed as people write them, and sent in ms since 1970. */
function moved(text) {
  const trimmed = text.trim();
  const ms = /^\d{4}-\d{2}-\d{2}/.test(trimmed) ? new Date(trimmed.replace(" ", "T")).getTime() : NaN;
  return Number.isNaN(ms) ? trimmed : String(ms);
}

export function subscription(root, context) {
  const [, topic, name] = context.parts;
  const marks = h("span");
  const warning = h("div");
  const tiles = {
    backlog: tile("backlog", "key key-backlog"),
    oldest: tile("oldest of it"),
    rateOut: tile("acknowledged", "key key-out"),
    held: tile("held by consumers"),
    delayed: tile("delayed"),
    size: tile("bytes behind it"),
  };
  const drawn = h("div");
  const bars = new Map();
  const consumers = table({
    columns: [
      { title: "consumer", class: "name", render: (row) => h("span", {}, row.consumerName, row.isActive ? [" ", tag("active", "good")] : null, row.blockedConsumerOnUnackedMsgs ? [" ", tag("holds all it may", "warn")] : null) },
      { title: "pid", class: "number", render: (row) => (row.pid ? String(row.pid) : "") },
      { title: "program", class: "name", render: (row) => row.program ?? "" },
      { title: "held", class: "number", render: (row) => count(row.unackedMessages) },
      { title: "oldest held", class: "mono fixed wide", render: (row) => row.oldestUnackedMessageId ?? "" },
      { title: "last acknowledged", class: "number wide", render: (row) => (row.lastAckedTimestamp ? `${age(row.lastAckedTimestamp)} ago` : "not yet") },
      { title: "attached", class: "number wide", render: (row) => age(Date.parse(row.connectedSince)) },
    ],
    keyOf: (row) => `${row.log} ${row.consumerName}`,
    empty: "No consumer is attached.",
  });
  replace(
    root,
    breakable(h("div", { class: "crumbs" }, "subscription of ", topicLink(topic))),
    h("div", { class: "head" }, breakable(h("h1", {}, name)), marks, context.allowChanges ? actionsOf(context, topic, name) : null),
    warning,
    h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
    card("What it has acknowledged, along the log", { end: h("div", { class: "legend" }, h("span", { class: "key-done" }, "acknowledged"), h("span", { class: "key-todo" }, "not acknowledged")) }, drawn),
    card("Consumers", { flush: true }, consumers.element),
    h("p", {}, h("a", { href: to(["topic", topic, "messages"]) }, "Messages of the topic"), " · ", h("a", { href: to(["letters", topic, name]) }, "Dead letters")),
  );
  context.follow({ view: "subscription", topic, name }, (value) => {
    const sum = (field) => value.logs.reduce((total, log) => total + (log.stats[field] ?? 0), 0);
    const times = value.logs.map((log) => log.stats.earliestMsgPublishTimeInBacklog).filter(Boolean);
    tiles.backlog.update(count(sum("msgBacklog")));
    tiles.oldest.update(times.length ? age(Math.min(...times)) : "–");
    tiles.rateOut.update(rate(value.logs.reduce((total, log) => total + log.rateOut, 0)), "/s");
    tiles.held.update(count(sum("unackedMessages")));
    tiles.delayed.update(count(sum("msgDelayed")));
    tiles.size.update(bytes(sum("backlogSize")));
    const types = [...new Set(value.logs.map((log) => log.stats.type))].filter((type) => type !== "None");
    replace(marks, types.map((type) => [tag(type), " "]), value.logs.every((log) => log.stats.isDurable) ? null : tag("not durable"));
    const reasons = [...new Set(value.logs.map((log) => log.why).filter(Boolean))];
    replace(warning, reasons.slice(0, 3).map((why) => notice(why)));
    drawRanges(drawn, bars, value);
    consumers.update(value.logs.flatMap((log) => log.consumers.map((each) => ({ ...each, log: log.log, isActive: log.stats.activeConsumerName === each.consumerName }))).slice(0, 500));
  });
}

function drawRanges(root, bars, value) {
  for (const log of value.logs.slice(0, 40)) {
    const stamp = JSON.stringify(log.ranges);
    let part = bars.get(log.log);
    if (!part) {
      part = { element: h("div"), stamp: "" };
      bars.set(log.log, part);
      root.append(part.element);
    }
    if (part.stamp === stamp) continue;
    part.stamp = stamp;
    const { ranges } = log;
    replace(
      part.element,
      value.partitions ? h("h3", {}, shortName(log.log)) : null,
      ranges.mark === null ? h("div", { class: "empty" }, "Its position is that of its consumers: nothing is kept for it.") : ranges.entries ? rangeBar(ranges) : h("div", { class: "empty" }, "The topic has no messages."),
      ranges.entries && ranges.mark !== null
        ? h("div", { class: "scale" }, h("span", {}, `acknowledged up to ${ranges.mark.replace(/^(\d+):-1$/, "the beginning of segment $1")}`), h("span", {}, ranges.runsTotal ? `${counted(ranges.runsTotal, "range")} behind that` : ""), h("span", {}, `${count(ranges.acknowledged)} of ${counted(ranges.entries, "entry")}`))
        : null,
    );
  }
}
