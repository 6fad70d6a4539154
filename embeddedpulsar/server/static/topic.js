// One topic: its figures and segments, messages, subscriptions, and its producers, consumers and schemas.

import { age, append, breakable, bytes, count, counted, duration, h, moment, rate, replace, shortName, tag, time, to } from "./dom.js";
import { STATES, barChart, heldBy, segmentBar } from "./charts.js";
import { ask, card, facts, notice, table, tile } from "./widgets.js";
import { messages } from "./messages.js";
import { subscriptionTable } from "./subscriptions.js";

const TABS = [
  ["", "Figures"],
  ["messages", "Messages"],
  ["subscriptions", "Subscriptions"],
  ["clients", "Producers and schemas"],
];

export async function topic(root, context) {
  const [, name, tab = ""] = context.parts;
  const body = h("div");
  const base = /^(.*)-partition-(\d+)$/.exec(name);
  const [domain, rest = ""] = name.split("://");
  const crumbs = h("div", { class: "crumbs" }, `${domain}://`, rest.split("/").slice(0, 2).join("/"), base ? [" · partition of ", h("a", { href: to(["topic", base[1]]) }, shortName(base[1]))] : null);
  const marks = h("span");
  const actions = context.allowChanges ? topicActions(name, context) : null;
  replace(
    root,
    crumbs,
    h("div", { class: "head" }, breakable(h("h1", {}, rest.split("/").slice(2).join("/") || name)), marks, actions),
    h("nav", { class: "tabs", "aria-label": "Parts of the topic" }, TABS.map(([path, text]) => h("a", { href: to(path ? ["topic", name, path] : ["topic", name]), "aria-current": path === tab ? "page" : null }, text))),
    body,
  );
  if (tab === "messages") await messages(body, context, name);
  else if (tab === "subscriptions") topicSubscriptions(body, context, name);
  else if (tab === "clients") clientsAndSchemas(body, context, name);
  else figures(body, context, name, marks);
}

function topicActions(name, context) {
  const of = (action, title, verb, fields) => () => ask({ title, verb, fields, given: { action, topic: name }, done: context.again });
  return h(
    "div",
    { class: "actions" },
    h("button", { type: "button", class: "small", onclick: of("publish", `Publish to ${shortName(name)}`, "Publish", [
      { name: "payload", label: "payload", type: "text area" },
      { name: "key", label: "key" },
      { name: "properties", label: "properties", hint: "one NAME=VALUE a line", type: "text area", convert: properties },
    ]) }, "Publish…"),
    h("button", { type: "button", class: "small", onclick: of("roll", "Seal the active segment", "Seal") }, "Seal…"),
    h("button", { type: "button", class: "small", onclick: of("trim", "Remove what nothing holds", "Trim") }, "Trim…"),
    h("button", { type: "button", class: "small", onclick: of("compact", "Compact the topic", "Compact") }, "Compact…"),
    h("button", { type: "button", class: "small danger", onclick: () => ask({ title: `Delete ${shortName(name)}`, verb: "Delete", given: { action: "delete-topic", topic: name }, done: () => (location.hash = to(["topics"])) }) }, "Delete…"),
  );
}

function properties(text) {
  return Object.fromEntries(text.split("\n").filter((line) => line.includes("=")).map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1)]));
}

const SPANS = [[900, "15 min"], [3600, "1 h"], [86400, "1 day"], [604800, "7 days"]];

function figures(root, context, name, marks) {
  const tiles = {
    rateIn: tile("published, 1 min", "key key-in"),
    backlog: tile("largest backlog", "key key-backlog"),
    oldest: tile("oldest of it"),
    entries: tile("entries"),
    storage: tile("storage"),
    size: tile("average message"),
  };
  const chart = barChart();
  const span = h("select", { "aria-label": "How far back" }, SPANS.map(([seconds, text]) => h("option", { value: seconds }, text)));
  const drawn = h("div");
  const partitions = h("div");
  const kept = h("div");
  let isDrawn = "";
  replace(
    root,
    h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
    card("Entries published, by the times in the log", { end: span }, chart.element),
    partitions,
    drawn,
    kept,
    checkCard(context, name),
  );
  const drawArrivals = async () => {
    try {
      const value = await context.get("arrivals", { topic: name, seconds: span.value });
      chart.update(value.times, value.entries);
    } catch (error) {
      context.fail(error);
    }
  };
  span.addEventListener("change", drawArrivals);
  drawArrivals();
  context.every(5000, drawArrivals);
  context.follow({ view: "topic", topic: name }, (value) => {
    const { stats } = value;
    const backlog = Math.max(0, ...Object.values(stats.subscriptions).map((each) => each.msgBacklog));
    tiles.rateIn.update(rate(stats.msgRateIn), "/s");
    tiles.backlog.update(count(backlog));
    tiles.oldest.update(age(stats.earliestMsgPublishTimeInBacklogs) || "–");
    tiles.entries.update(count(value.logs.reduce((sum, log) => sum + log.entries, 0)));
    tiles.storage.update(bytes(stats.storageSize));
    tiles.size.update(stats.averageMsgSize ? bytes(stats.averageMsgSize) : "–");
    replace(marks, value.partitions ? tag(counted(value.partitions, "partition")) : null, value.logs.some((log) => log.state === "Terminated") ? tag("terminated", "warn") : null);
    // Drawn anew only if something changed: what is pointed at or chosen stays otherwise.
    const stamp = JSON.stringify([value.logs, value.shares.map((share) => share.name)]);
    if (stamp === isDrawn) return;
    isDrawn = stamp;
    drawPartitions(partitions, value);
    drawSegments(drawn, value);
    drawKept(kept, value);
  });
}

/** Reads all files of the topic when it is asked to: that takes as long as it takes. */
function checkCard(context, name) {
  const result = h("div", { class: "muted" }, "Reads and verifies all of them. Nothing is changed.");
  const button = h("button", { type: "button", class: "small", onclick: async () => {
    button.disabled = true;
    replace(result, "reading…");
    try {
      const report = await context.get("check", { topic: name });
      replace(
        result,
        report.damage.length ? report.damage.map((each) => notice(`${each.kind}: ${each.text}. ${each.meaning} ${each.remedy}`, "bad")) : h("span", { class: "good" }, "No damage."),
        h("span", { class: "muted" }, ` ${counted(report.messages, "message")} in ${counted(report.segments, "segment")} read.`),
      );
    } catch (error) {
      if (error.name !== "AbortError") replace(result, notice(error.message, "bad"));
    }
    button.disabled = false;
  } }, "Check now");
  return card("Files of the topic", { end: button }, result);
}

function drawPartitions(root, value) {
  replace(root);
  if (!value.shares.length) return;
  const list = table({
    columns: [
      { title: "partition", class: "name", render: (row) => h("a", { href: to(["topic", row.name]) }, shortName(row.name)) },
      { title: "in/s", class: "number", render: (row) => rate(row.rateIn) },
      { title: "backlog", class: "number", render: (row) => count(row.backlog) },
      { title: "storage", class: "number", render: (row) => bytes(row.storage) },
      { title: "producers", class: "number wide", render: (row) => count(row.producers) },
    ],
    keyOf: (row) => row.name,
    open: (row) => (location.hash = to(["topic", row.name])),
  });
  list.update(value.shares);
  root.append(card("Partitions", { flush: true }, list.element));
}

function drawSegments(root, value) {
  const legend = h("ul", { class: "legend" }, Object.entries(STATES).map(([state, text]) => h("li", { class: `state-${state}`, title: text }, state)));
  const chosen = h("div");
  const choose = (segment, button) => {
    root.querySelectorAll(".segments button").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    replace(chosen, facts([
      ["segment", h("span", { class: "mono" }, segment.ledger)],
      ["state", [h("span", { class: `swatch state-${segment.state}` }), STATES[segment.state]]],
      ["entries", `${count(segment.entries)}, ${bytes(segment.size)}`],
      ["kept because", heldBy(segment)],
      ["also", [segment.isOffloaded && segment.state !== "offloaded" ? "offloaded" : "", segment.isCompacted && segment.state !== "compacted" ? "compacted" : ""].filter(Boolean).join(", ")],
      ["messages", h("a", { href: to(["topic", segment.log, "messages"], { from: `${segment.ledger}:0`, forward: "1" }) }, "from its first entry on")],
    ]));
  };
  const logs = value.logs.filter((log) => log.segments.length);
  replace(
    root,
    card(
      "Segments, as wide as they are large",
      { end: legend },
      logs.length ? null : h("div", { class: "empty" }, "The topic has no messages yet."),
      logs.slice(0, 40).map((log) => [
        value.partitions ? h("h3", {}, shortName(log.name)) : null,
        log.older.segments ? h("p", { class: "muted" }, `The newest ${count(log.segments.length)}; before them ${counted(log.older.segments, "segment")} of ${bytes(log.older.size)} with ${counted(log.older.entries, "entry")}.`) : null,
        segmentBar(log.segments.map((segment) => ({ ...segment, log: log.name })), choose),
        h("div", { class: "scale" }, h("span", {}, `from ${log.segments[0].ledger}:0`), h("span", {}, `last entry ${log.last}`)),
      ]),
      chosen,
    ),
  );
}

function sum(logs, field) {
  const total = {};
  for (const log of logs) for (const [name, size] of Object.entries(log[field])) total[name] = (total[name] ?? 0) + size;
  return Object.entries(total).sort((one, other) => other[1] - one[1]);
}

function drawKept(root, value) {
  const { policies, stats } = value;
  const minutes = policies.retentionMinutes;
  const mb = policies.retentionMegabytes;
  const retention = minutes || mb ? `${minutes < 0 ? "no limit of time" : duration(minutes * 60000)}, ${mb < 0 ? "no limit of size" : bytes(mb * 2 ** 20)}` : "until all subscriptions have acknowledged it";
  const segments = value.logs.flatMap((log) => log.segments);
  const list = table({
    columns: [
      { title: "segment", class: "mono fixed", render: (row) => String(row.ledger) },
      { title: "state", class: "fixed", render: (row) => h("span", {}, h("span", { class: `swatch state-${row.state}` }), row.state, row.isOffloaded && row.state !== "offloaded" ? ", offloaded" : "", row.isCompacted && row.state !== "compacted" ? ", compacted" : "") },
      { title: "entries", class: "number wide", render: (row) => count(row.entries) },
      { title: "size", class: "number", render: (row) => bytes(row.size) },
      { title: "who holds it", class: "why", render: heldBy },
    ],
    keyOf: (row) => `${row.log}:${row.ledger}`,
    empty: "No segments.",
  });
  const rows = value.logs.flatMap((log) => log.segments.map((segment) => ({ ...segment, log: log.name })));
  list.update(rows.slice(-200));
  replace(
    root,
    h(
      "div",
      { class: "grid" },
      card("What holds the space", {}, facts([
        ...sum(value.logs, "sizeByReason").map(([reason, size]) => [bytes(size), reason]),
        ...sum(value.logs, "sizeBySubscription").slice(0, 10).map(([name, size]) => [bytes(size), [ "not acknowledged by ", h("a", { href: to(["subscription", value.name, name]) }, name)]]),
      ])),
      card("Policies", {}, facts([
        ["kept", policies.keepsUntilSubscribed ? `${retention}; everything until there is a subscription` : retention],
        ["time to live", policies.timeToLive ? duration(policies.timeToLive * 1000) : "none"],
        ["deduplication", stats.deduplicationStatus],
        ["compaction", policies.compactionThreshold ? `beyond ${bytes(policies.compactionThreshold)}` : stats.compaction.lastCompactionSucceedTimestamp ? `last ${moment(stats.compaction.lastCompactionSucceedTimestamp)}` : "on demand"],
        ["backlog quota", quotas(policies.quotas) || "none"],
        ["published", `${counted(stats.msgInCounter, "message")}, ${bytes(stats.bytesInCounter)}`],
      ])),
    ),
    card(rows.length > 200 ? `The last 200 of ${count(segments.length)} segments` : "Segments", { flush: true }, list.element),
  );
}

function quotas(values) {
  return values
    .map((quota) => [quota.limitSize >= 0 ? bytes(quota.limitSize) : "", quota.limitTime >= 0 ? duration(quota.limitTime * 1000) : "", quota.policy].filter(Boolean))
    .filter((parts) => parts.length > 1)
    .map((parts) => parts.join(", "))
    .join("; ");
}

function topicSubscriptions(root, context, name) {
  const list = subscriptionTable(context, { topic: name, order: "name" }, "No subscriptions: what is published is kept as the policies say.");
  const create = context.allowChanges
    ? h("button", { type: "button", onclick: () => ask({ title: "Create a subscription", verb: "Create", given: { action: "create-subscription", topic: name }, fields: [
        { name: "subscription", label: "name" },
        { name: "to", label: "begins with", type: "choice", options: [["latest", "the next message"], ["earliest", "the first retained message"]] },
      ], done: context.again }) }, "Create…")
    : null;
  replace(root, create ? h("div", { class: "controls" }, create) : null, card("", { flush: true }, list));
}

function clientsAndSchemas(root, context, name) {
  const list = table({
    columns: [
      { title: "kind", class: "fixed", render: (row) => row.kind },
      { title: "name", class: "name", render: (row) => row.name },
      { title: "subscription", class: "name", render: (row) => row.subscription },
      { title: "pid", class: "number wide", render: (row) => (row.pid ? String(row.pid) : "") },
      { title: "program", class: "name wide", render: (row) => row.program },
      { title: "held", class: "number", render: (row) => (row.kind === "consumer" ? count(row.held) : "") },
      { title: "acknowledged", class: "number wide", render: (row) => (row.lastAcknowledged ? `${age(row.lastAcknowledged)} ago` : "") },
    ],
    keyOf: (row) => `${row.log} ${row.kind} ${row.subscription} ${row.name}`,
    empty: "Nothing is attached.",
  });
  const schemas = h("div");
  replace(root, card("Producers and consumers", { flush: true }, list.element), card("Schemas", {}, schemas));
  const drawClients = async () => {
    try {
      list.update((await context.get("clients", { topic: name })).slice(0, 500));
    } catch (error) {
      context.fail(error);
    }
  };
  drawClients();
  context.every(2000, drawClients);
  context.get("schemas", { topic: name }).then((versions) => {
    if (!versions.length) append(schemas, [h("div", { class: "empty" }, "The topic has no schema: payloads are bytes.")]);
    for (const version of versions) {
      append(schemas, [
        h("h3", {}, `version ${version.version}, ${version.type} `, h("span", { class: "muted" }, "since ", time(version.time))),
        h("pre", { class: "block" }, pretty(version.definition) || "no definition: the type says all"),
        Object.keys(version.properties).length ? facts(Object.entries(version.properties)) : null,
      ]);
    }
  }).catch(context.fail);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (error) {
    return text; // a definition that is no JSON, as that of Protobuf
  }
}
