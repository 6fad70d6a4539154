// Functions, transactions, and the health of the store.

import { age, bytes, count, h, moment, replace, shortName, tag, to, topicLink } from "./dom.js";
import { ask, card, facts, notice, table } from "./widgets.js";

function repeated(context, ms, body) {
  const draw = async () => {
    try {
      await body();
    } catch (error) {
      context.fail(error);
    }
  };
  context.every(ms, draw);
  return draw();
}

export function functions(root, context) {
  const list = h("div");
  let stamp = "";
  replace(root, h("div", { class: "head" }, h("h1", {}, "Functions")), list);
  return repeated(context, 2000, async () => {
    const values = await context.get("functions");
    const next = JSON.stringify(values);
    if (next === stamp) return;
    stamp = next;
    replace(list, values.length ? values.map((each) => functionCard(each, context, () => (stamp = ""))) : card("", {}, h("div", { class: "empty" }, "No functions. ", h("code", {}, "embeddedpulsar functions create"), " makes one.")));
  });
}

function functionCard(each, context, changed) {
  if (each.error) return card(each.name, {}, notice(each.error, "bad"));
  const { config, status } = each;
  const state = !status.isStarted ? tag("stopped") : !status.supervisorAttached ? tag("nothing runs it: embeddedpulsar functions run", "warn") : status.numRunning < status.numInstances ? tag(`${status.numRunning} of ${status.numInstances} run`, "warn") : tag("runs", "good");
  const button = (action, text, verb) => h("button", { type: "button", class: "small", onclick: () => ask({ title: `${verb} ${each.name}`, verb, given: { action: `${action}-function`, function: each.name }, done: changed }) }, text);
  const instances = table({
    columns: [
      { title: "instance", class: "fixed", render: (row) => `#${row.instanceId}` },
      { title: "state", class: "fixed", render: (row) => (row.running ? tag("runs", "good") : tag("does not run")) },
      { title: "pid", class: "number wide", render: (row) => row.workerId },
      { title: "received", class: "number", render: (row) => count(row.numReceived) },
      { title: "done", class: "number", render: (row) => count(row.numSuccessfullyProcessed) },
      { title: "failed", class: "number", render: (row) => count(row.numUserExceptions + row.numSystemExceptions) },
      { title: "latency", class: "number wide", render: (row) => `${row.averageLatency.toFixed(1)} ms` },
      { title: "last error", class: "why", render: (row) => row.error },
    ],
    keyOf: (row) => String(row.instanceId),
  });
  instances.update(status.instances);
  return card(
    each.name,
    { flush: true, end: h("span", {}, state, " ", context.allowChanges ? [status.isStarted ? button("stop", "Stop…", "Stop") : button("start", "Start…", "Start"), " ", button("restart", "Restart…", "Restart")] : null) },
    h("p", { class: "muted" }, (config.inputs ?? []).map((name, at) => [at ? ", " : "", h("a", { href: to(["topic", full(name)]) }, shortName(full(name)))]), " → ", config.className ?? "", config.output ? [" → ", h("a", { href: to(["topic", full(config.output)]) }, shortName(full(config.output)))] : ""),
    instances.element,
  );
}

function full(name) {
  if (name.includes("://")) return name;
  return name.includes("/") ? `persistent://${name}` : `persistent://public/default/${name}`;
}

export function transactions(root, context) {
  const stats = h("div");
  const list = table({
    columns: [
      { title: "transaction", class: "mono fixed", render: (row) => row.txnId },
      { title: "label", class: "name", render: (row) => row.label },
      { title: "state", class: "fixed", render: (row) => tag(row.status.toLowerCase(), row.status === "PREPARED" ? "warn" : "") },
      { title: "open for", class: "number", render: (row) => age(row.openTimestamp) },
      { title: "ends at", class: "fixed wide", render: (row) => (row.timeoutAt ? moment(row.timeoutAt) : "no limit") },
      { title: "process", class: "name", render: (row) => (row.pid ? `${row.pid} ${row.program}` : "") },
      { title: "stored in", class: "name wide", render: (row) => h("span", {}, Object.keys(row.producedPartitions).slice(0, 5).map((name, at) => [at ? ", " : "", topicLink(name)])) },
      { title: "", class: "fixed", render: (row) => actions(row), stamp: (row) => row.status },
    ],
    keyOf: (row) => row.txnId,
    empty: "No transaction is open.",
  });
  const draw = async () => {
    const value = await context.get("transactions");
    const { stats: sums } = value;
    replace(stats, facts([["open", count(sums.ongoingTxnSize)], ["prepared", count(sums.preparedTxnSize)], ["committed", count(sums.committedTxnCount)], ["aborted", count(sums.abortedTxnCount)], ["torn by a power loss", sums.tornTxnCount ? count(sums.tornTxnCount) : ""]]));
    list.update(value.open.slice(0, 500));
  };
  const actions = (row) => {
    if (!context.allowChanges) return h("span");
    const given = { transaction: row.txnId };
    return h(
      "span",
      {},
      row.status === "PREPARED" ? [h("button", { type: "button", class: "small", onclick: () => ask({ title: `Commit ${row.txnId}`, verb: "Commit", given: { action: "commit-transaction", ...given }, done: draw }) }, "Commit…"), " "] : null,
      h("button", { type: "button", class: "small danger", onclick: () => ask({ title: `Abort ${row.txnId}`, verb: "Abort", given: { action: "abort-transaction", ...given }, done: draw }) }, "Abort…"),
    );
  };
  replace(root, h("div", { class: "head" }, h("h1", {}, "Transactions")), card("Since the store was made", {}, stats), card("Open and prepared", { flush: true }, list.element));
  return repeated(context, 2000, draw);
}

export function health(root, context) {
  const checks = h("div");
  const disk = h("div");
  const damage = h("div");
  const processes = table({
    columns: [
      { title: "pid", class: "number", render: (row) => (row.pid ? String(row.pid) : "") },
      { title: "program", class: "name", render: (row) => row.program || "not known" },
      { title: "producers", class: "number", render: (row) => count(row.producers) },
      { title: "consumers", class: "number", render: (row) => count(row.consumers) },
      { title: "messages held", class: "number wide", render: (row) => count(row.held) },
    ],
    keyOf: (row) => `${row.pid} ${row.program}`,
    empty: "No producers and no consumers.",
  });
  replace(
    root,
    h("div", { class: "head" }, h("h1", {}, "Health")),
    h("div", { class: "grid" }, card("The store", {}, checks), card("The disk", {}, disk)),
    card("Damage", {}, damage),
    card("Processes with producers or consumers", { flush: true }, processes.element),
  );
  let stamp = "";
  return repeated(context, 5000, async () => {
    const value = await context.get("health");
    replace(checks, facts([
      ...value.checks.map((check) => [check.name, check.reason ? h("span", { class: "bad" }, check.reason) : h("span", { class: "good" }, "ok")]),
      ["directory", h("span", { class: "mono" }, value.path)],
      ["format", `version ${value.formatVersion}`],
      ["processes", openedBy(value.processes, !context.readOnly)],
    ]));
    const { total, used, free, store } = value.disk;
    const share = ((used / (used + free)) * 100 || 0).toFixed(0); // as `df`: without what the file system reserves
    const meter = h("div", { class: `meter ${free / total < 0.05 ? "bad" : ""}` }, h("i"));
    meter.firstChild.style.width = `${share}%`;
    replace(disk, meter, h("p", { class: "muted" }, `${share} % used`), facts([["free", bytes(free)], ["all", bytes(total)], ["messages of the store", bytes(store)]]));
    const next = JSON.stringify([value.damage, value.unread, value.unrecovered]);
    if (next !== stamp) drawDamage(damage, value);
    stamp = next;
    processes.update(value.attached);
  });
}

function drawDamage(root, value) {
  const parts = [
    ...value.unread.map((each) => notice(`${each.topic} cannot be read: ${each.reason}`, "bad")),
    ...value.damage.map((each) => notice(`${each.kind}: ${each.text}`, "bad")),
    value.unrecovered.length ? notice(`not recovered yet: ${value.unrecovered.slice(0, 20).join(", ")}; figures of them may be behind`) : null,
  ].filter(Boolean);
  replace(root, parts.length ? parts : h("p", { class: "muted" }, "None was met since the server was started. ", h("code", {}, "embeddedpulsar check"), " reads all files."));
}

/** A server that opened the store read-only looks, and is none of the processes that have the store open. */
function openedBy(processes, isCounted) {
  const all = `${count(processes)} ${processes === 1 ? "has" : "have"} it open`;
  if (!isCounted) return processes ? `${all}; this server only looks` : "this server alone, which only looks";
  return processes === 1 ? "this server alone has it open" : `${all}, this server included`;
}
